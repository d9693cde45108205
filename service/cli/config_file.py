"""`--config FILE`: settings as YAML, under the names of their flags or variables.

A flag takes precedence over a variable, a variable over the file.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from service.cli.flags import PARALLELISM
from service.settings.answers import answer
from service.settings.constants import refusals
from service.settings.errors import SettingsError
from service.settings.settings import Settings, env_name, is_set

# Names of vLLM's configuration files for settings of another name.
_SECOND_NAMES: Final = {"port": "server_port", "host": "server_host"}


def read(path: Path) -> dict[str, Any]:
    """The settings of a file, by field; `model` stays as it is. Raises SettingsError."""
    try:
        held = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise SettingsError(f"--config {path} cannot be read: {error}") from None
    if held is None:
        return {}
    if not isinstance(held, dict):
        raise SettingsError(
            f"--config {path} must hold names and values, as in `server-port: 8000`."
        )
    if unknown := [_complaint(str(key)) for key in held if not _is_known(_field(str(key)))]:
        raise SettingsError(f"--config {path}: {' '.join(unknown)}")
    return {_field(str(key)): _text(key, value, path) for key, value in held.items()}


def unset(values: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a file's values that neither a flag nor a variable sets."""
    return {
        field: value for field, value in values.items() if field not in flags and not is_set(field)
    }


def _field(key: str) -> str:
    name = key.strip().lower().replace("-", "_").removeprefix("nim_")
    return _SECOND_NAMES.get(name, name)


def _is_known(field: str) -> bool:
    return field in Settings.model_fields or field in ("model", *PARALLELISM)


def _complaint(key: str) -> str:
    """A name that is no setting; for a flag of another server with what to do here."""
    if said := refusals([key]):
        return said[0]
    field = _field(key)
    flags = (f"--{field.replace('_', '-')}", f"--{field}")  # TensorRT-LLM writes underscores
    if instead := next(filter(None, (answer("flags", flag) for flag in flags)), ""):
        return f"{key!r} is not a setting. {instead}"
    near = difflib.get_close_matches(field, [*Settings.model_fields], n=1, cutoff=0.75)
    hint = f"; did you mean {near[0].replace('_', '-')}?" if near else "."
    return f"{key!r} is not a setting{hint}"


def _text(key: object, value: object, path: Path) -> object:
    """YAML's value as a variable would say it; a list is joined by commas."""
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    if isinstance(value, str | int | float) or value is None:
        return value
    name = env_name(str(key).lower().replace("-", "_"))
    raise SettingsError(f"--config {path}: {key} must be one value, as {name} is.")
