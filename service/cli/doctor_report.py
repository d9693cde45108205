"""Everything a support bundle needs of this installation, without a secret."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from engines.factory import abouts
from profiles.selection.notes import where
from profiles.selection.verdicts import Selection
from service.cli.doctor_checks import Check, all_checks
from service.run.machine import visible_hardware
from service.run.startup import prepare
from service.settings.settings import SECRETS, Settings, env_name, secret_values
from service.telemetry.logs import Redactor

PACKAGES = (
    *("harmonium", "torch", "triton", "numpy", "safetensors", "llguidance", "oss-harmony"),
    *("fastapi", "starlette", "pydantic", "uvicorn", "uvloop", "httptools", "msgspec", "pyzmq"),
    *("prometheus-client", "opentelemetry-sdk", "python-jose", "redis", "nvidia-ml-py"),
)


def report(settings: Settings) -> dict[str, Any]:
    """Gather versions, hardware, profile, settings and checks as plain data, secrets replaced."""
    hardware = visible_hardware()
    chosen: list[Selection] = []

    def choose() -> tuple[Selection, Path]:
        launch = prepare(settings)
        chosen.append(launch.selection)
        return launch.selection, launch.model_dir

    checks = list(all_checks(settings, hardware, choose))
    redact = Redactor(secret_values(settings))
    found = {
        "versions": versions(),
        "hardware": asdict(hardware),
        "profile": _profile(chosen[0]) if chosen else None,
        "settings": shown_settings(settings),
        "checks": [asdict(check) for check in checks],
        "state": worst(checks),
    }
    cleaned = redact.clean(found)
    assert isinstance(cleaned, dict)
    return cleaned


def _packages() -> tuple[str, ...]:
    """Ours, and each engine's own."""
    return (*PACKAGES, *(name for each in abouts().values() for name in each.distributions))


def versions() -> dict[str, str | None]:
    """Return the versions of this release, Python, system and libraries; None: not installed."""
    return {
        "python": sys.version.split()[0],
        "system": platform.platform(),
        **{name: _version(name) for name in _packages()},
    }


def shown_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings by environment name; of a secret only whether it is set."""
    return {env_name(field): _shown(field, settings) for field in type(settings).model_fields}


def worst(checks: list[Check]) -> str:
    states = {check.state for check in checks}
    return next((state for state in ("failed", "warning") if state in states), "ok")


def _shown(field: str, settings: Settings) -> Any:
    value = getattr(settings, field)
    if value is not None and (field in SECRETS or isinstance(value, SecretStr)):
        return "(set)"
    return str(value) if isinstance(value, Path) else value


def _profile(selection: Selection) -> dict[str, Any]:
    chosen = selection.chosen
    return {
        "id": chosen.profile.id,
        "name": chosen.profile.name,
        "model": chosen.profile.model.name,
        "engine": chosen.profile.engine,
        "max_model_len": chosen.max_model_len,
        "runs": where(chosen.placement),
        "reason": selection.reason,
        "notes": list(selection.notes),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
