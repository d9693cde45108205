"""`harmonium doctor`: what a support bundle needs; exit code 1 when a start would fail."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from service.cli.doctor_report import report
from service.settings.settings import Settings, load
from service.settings.terminal import runnable, width_of, wrapped

HEALTHY, ILL = 0, 1


@click.command
@click.option("--json", "is_json", is_flag=True, help="Machine-readable output.")
def doctor(is_json: bool) -> int:
    """Check this machine and the settings; exit code 1 if a start would fail."""
    found = report(load())
    click.echo(json.dumps(found, indent=2, default=str) if is_json else "\n".join(_lines(found)))
    return ILL if found["state"] == "failed" else HEALTHY


def _lines(found: dict[str, Any]) -> list[str]:
    return [
        "VERSIONS",
        *_table({name: value for name, value in found["versions"].items() if value}),
        "HARDWARE",
        *_hardware(found["hardware"]),
        "PROFILE",
        *(_profile(found["profile"]) if found["profile"] else ["  none can run here; see model"]),
        "SETTINGS (those that are set, secrets hidden)",
        *_table(_changed(found["settings"])),
        "CHECKS",
        *(
            line
            for check in found["checks"]
            for line in _wrapped(f"  {check['state']:<8} {check['name']:<10} ", check["detail"])
        ),
    ]


def _profile(profile: dict[str, Any]) -> list[str]:
    return _table({**profile, "notes": " ".join(profile["notes"]) or "none"})


def _hardware(hardware: dict[str, Any]) -> list[str]:
    cpu = hardware["cpu"]
    rows = {
        "cpu": f"{cpu['num_cores']} cores, {cpu['model']}",
        "memory": f"{cpu['total_bytes'] / 1e9:.1f} GB",
        "driver": hardware["driver"] or "none",
        "gpus": ", ".join(gpu["name"] for gpu in hardware["gpus"]) or hardware["no_gpu_reason"],
    }
    return _table(rows)


def _changed(settings: dict[str, Any]) -> dict[str, Any]:
    defaults = {f"NIM_{name.upper()}": f.default for name, f in Settings.model_fields.items()}
    changed = {name: value for name, value in settings.items() if value != defaults[name]}
    return changed or {"(none)": "all settings have their defaults"}


def _table(rows: dict[str, Any]) -> list[str]:
    width = max(len(name) for name in rows)
    return [
        line
        for name, value in rows.items()
        for line in _wrapped(f"  {name:<{width}}  ", str(value))
    ]


def _wrapped(begin: str, text: str) -> list[str]:
    """A row in the terminal's width; what is no terminal gets it in one line."""
    width = width_of(sys.stdout) if sys.stdout.isatty() else len(begin + text) + 1
    found = wrapped(runnable(text), width, begin, " " * min(len(begin), width // 3))
    return found or [begin.rstrip()]
