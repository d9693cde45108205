"""Every setting, read once from the environment: the only reader of os.environ."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from engines.parts import facets
from profiles.download.source import NgcAccess
from service.settings.access_settings import AccessSettings
from service.settings.answers import answer
from service.settings.constants import refusals
from service.settings.errors import SettingsError
from service.settings.group import SHAPE, Group
from service.settings.serving import DatabaseSettings, LoadSettings, ModelSettings, ServerSettings
from service.settings.telemetry import TelemetrySettings

ENV_PREFIX = "NIM_"
# NIM_READ_WITHOUT_KEY names routes: hiding it would hide them in every line of the log.
SECRET_NAMES = re.compile(r"(?<!WITHOUT_)(KEYS?|TOKEN|SECRET|PASSWORD|HEADERS|REDIS_URL)$")
# OpenMP threads that wait spin for 30 us, until the next operation's work comes as a rule, and
# then sleep. By default they spin for milliseconds, and on a machine with few cores they do it
# on those that the API and the other threads need.
PATIENT_THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}
FEW_KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256"}  # of 0.5 MB each; 1,024 by default


# NVIDIA's NIM Operator sets the port under both of NIM's names.
SECOND_NAMES = {"NIM_HTTP_API_PORT": "server_port"}


T = TypeVar("T", bound=Group)

_GROUPS: tuple[type[Group], ...] = tuple(facets("settings", Group).values())
SECRETS = frozenset({"api_keys"}).union(*(group.secrets for group in _GROUPS))
if TYPE_CHECKING:
    PartSettings = Group
else:  # a class with the settings of every part
    PartSettings = type("PartSettings", (*_GROUPS, Group), {})


class Settings(
    TelemetrySettings,
    DatabaseSettings,
    LoadSettings,
    PartSettings,
    AccessSettings,
    ServerSettings,
    ModelSettings,  # its fields come first
):
    """What the operator chose; each description also makes docs/settings.md and the CLI help."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=False,
        protected_namespaces=(),
    )

    def of(self, group: type[T]) -> T:
        """The settings of a part: these, as its own class."""
        assert isinstance(self, group)
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment: neither a .env file nor a folder of secrets is read."""
        return init_settings, env_settings


def load(overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings of the environment; `overrides` (from the command line) win.

    Raises SettingsError, one line per unusable value.
    """
    names = [name for name, value in os.environ.items() if value and name.startswith(ENV_PREFIX)]
    if complaints := refusals([*sorted(names), *(overrides or {})]):
        raise SettingsError("\n".join(complaints))
    try:
        standard = {field: value for field, (_, value) in _standard().items()} | _second_names()
        return Settings(**{**standard, **(overrides or {})})
    except ValidationError as error:
        flags = overrides or {}
        complaints = [_complaint(item, flags) for item in error.errors()]
        raise SettingsError("\n".join(complaints)) from None


def _standard() -> dict[str, tuple[str, str]]:
    """By setting, a standard variable that speaks where none of ours does, and what it says."""
    found: dict[str, tuple[str, str]] = {}
    for group in _GROUPS:
        try:
            found.update(group.standard(os.environ))
        except ValueError as error:
            raise SettingsError(f"{error}") from None
    return {field: row for field, row in found.items() if not os.environ.get(env_name(field))}


def _second_names() -> dict[str, str]:
    """Settings that the environment gives under their second name alone.

    Raises SettingsError where both names are set and differ.
    """
    found = {}
    for name, field in SECOND_NAMES.items():
        value, first = os.environ.get(name), os.environ.get(env_name(field))
        if value and first and value != first:
            raise SettingsError(
                f"{env_name(field)} is {first!r} and {name} is {value!r}; set one of them."
            )
        if value:
            found[field] = value
    return found


def origins(overrides: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Where each setting's value comes from: a flag's name, a variable's name, or `default`."""
    return {
        field: (flag_name(field) or env_name(field))
        if field in (overrides or {})
        else _variable_of(field) or "default"
        for field in Settings.model_fields
    }


def is_set(field: str) -> bool:
    """Whether the environment sets a field, under any of its names."""
    return _variable_of(field) is not None


def _variable_of(field: str) -> str | None:
    if os.environ.get(env_name(field)):
        return env_name(field)
    second = next((name for name, of in SECOND_NAMES.items() if of == field), "")
    if os.environ.get(second):
        return second
    return _standard().get(field, (None, ""))[0]


def group_of(field: str) -> str:
    """The title of the settings' group that a field belongs to."""
    own = next(
        base
        for base in reversed(Settings.__mro__)
        if field in vars(base).get("__annotations__", {})
    )
    return str(own.__doc__)


def fields_of_engine() -> tuple[str, ...]:
    """The settings of parts that decide about the engine."""
    return tuple(field for group in _GROUPS for field in group.of_engine)


def unknown_names(environ: Mapping[str, str] | None = None) -> list[tuple[str, str | None]]:
    """NIM_* variables that nothing here reads, each with the nearest known name.

    NIM's own have none: they are answered by what they are.
    """
    read = (name for group in _GROUPS for name in group.variables)
    known = [*(env_name(field) for field in Settings.model_fields), *SECOND_NAMES, *read]
    names = sorted(name for name in (environ or os.environ) if name.startswith(ENV_PREFIX))
    return [
        (name, None if answer("variables", name) else _nearest(name, known))
        for name in names
        if name not in known
    ]


def standard_variables(*prefixes: str) -> dict[str, str]:
    """The variables of another standard, such as OTEL_, that are set."""
    return {
        name: value for name, value in os.environ.items() if value and name.startswith(prefixes)
    }


def engine_environment(added: Mapping[str, str]) -> dict[str, str]:
    """The environment of the engine process: this one less the secrets, none of which it needs.

    `added`: what its profile sets; goes before what is inherited.
    """
    ours = {env_name(field) for field in SECRETS}
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not SECRET_NAMES.search(name)
    }
    given = {**FEW_KERNELS, **inherited, **added}
    return given if "OMP_WAIT_POLICY" in given else {**PATIENT_THREADS, **given}


def visible_gpus() -> str | None:
    """CUDA_VISIBLE_DEVICES as it is given to this process and inherited by its engines."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def secret_values(settings: Settings) -> list[str]:
    """Every secret this process was given, by setting or by environment: never to be written."""
    given = [value for name, value in os.environ.items() if SECRET_NAMES.search(name)]
    for field in SECRETS:
        value = getattr(settings, field)
        given += [value.get_secret_value()] if value is not None else []
    return [part for value in given for part in {value, *re.split(r"[,\s]+", value)} if part]


def worker_environment(shared_folder: Path | None) -> dict[str, str]:
    """The environment of an API worker; `shared_folder`: where several count together."""
    name = "PROMETHEUS_MULTIPROC_DIR"
    if shared_folder is not None:
        return {**os.environ, name: str(shared_folder)}
    return {key: value for key, value in os.environ.items() if key.upper() != name}


def ngc_access() -> NgcAccess:
    """Access to NGC, from the variables of NGC's own tools."""
    given = {
        "api_key": os.environ.get("NGC_CLI_API_KEY") or os.environ.get("NGC_API_KEY"),
        "api_url": os.environ.get("NGC_CLI_API_URL"),
        "auth_url": os.environ.get("NGC_CLI_AUTH_URL"),
    }
    return NgcAccess(**{name: value.rstrip("/") for name, value in given.items() if value})


def env_name(field: str) -> str:
    return ENV_PREFIX + field.upper()


def flag_name(field: str) -> str | None:
    """The flag of `harmonium serve`; secrets have none, because other users can list flags."""
    return None if field in SECRETS else "--" + field.replace("_", "-")


def _nearest(name: str, known: list[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.85)), None)


def _complaint(error: Any, flags: Mapping[str, Any]) -> str:
    field = str(error["loc"][0])
    shown = "(hidden)" if field in SECRETS else repr(error["input"])
    flag = flag_name(field) if field in flags else None  # a secret has none
    name = flag or env_name(field)
    about = Settings.model_fields[field]
    fault = error["msg"]
    if error["type"] == "string_pattern_mismatch" and isinstance(about.json_schema_extra, dict):
        fault = f"It must be {about.json_schema_extra[SHAPE]}"
    return f"{name} has value {shown}: {fault}. It sets: {about.description}"
