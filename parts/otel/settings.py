"""The settings of OpenTelemetry, and what its own variables say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from service.settings.group import SHAPE, Group

Exporter = Literal["otlp", "console", "none"]
Protocol = Literal["http/protobuf", "grpc"]

_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_DISABLED = "OTEL_SDK_DISABLED"
_ENDPOINTS = tuple(
    f"OTEL_EXPORTER_OTLP_{part}ENDPOINT" for part in ("", "TRACES_", "METRICS_", "LOGS_")
)


@dataclass(frozen=True, slots=True)
class Standard:
    """What OpenTelemetry's own variables say. Exporters read OTEL_EXPORTER_OTLP_* themselves."""

    traces_exporter: Exporter = "otlp"
    metrics_exporter: Exporter = "otlp"
    logs_exporter: Exporter = "otlp"
    exporter_otlp_protocol: Protocol = "http/protobuf"
    service_name: str = "harmonium"


_STANDARD: Final = TypeAdapter(Standard)
# NIM's own names of these; they go before the standard's.
_OF_NIM: Final = {
    field: f"NIM_OTEL_{field.upper()}"
    for field in ("traces_exporter", "metrics_exporter", "service_name")
}


def standard_of(environ: Mapping[str, str]) -> Standard:
    """Raises ValueError for a value that is none of the standard's, or not supported here."""
    names = {field.name: _name(field.name, environ) for field in fields(Standard)}
    given = {field: environ[name] for field, name in names.items() if environ.get(name)}
    try:
        return _STANDARD.validate_python(given)
    except ValidationError as error:
        (first, *_) = error.errors()
        name = names[str(first["loc"][0])]
        raise ValueError(f"{name} has value {first['input']!r}: {first['msg']}.") from None


def _name(field: str, environ: Mapping[str, str]) -> str:
    of_nim = _OF_NIM.get(field, "")
    return of_nim if environ.get(of_nim) else f"OTEL_{field.upper()}"


class OtelSettings(Group):
    """OpenTelemetry"""

    variables: ClassVar[tuple[str, ...]] = tuple(_OF_NIM.values())
    constants: ClassVar[Mapping[str, str]] = {
        f"otel_{field.name}": f"{field.default}, or OTEL_{field.name.upper()}"
        for field in fields(Standard)
        if field.name not in _OF_NIM
    }

    enable_otel: bool | None = Field(
        None,
        description="Send traces, metrics and logs with OpenTelemetry. Unset: on if an"
        " `OTEL_EXPORTER_OTLP_*ENDPOINT` is set and `OTEL_SDK_DISABLED` is not `true`.",
    )
    otel_exporter_otlp_endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s]+$",
        json_schema_extra={SHAPE: "a URL that begins with http:// or https://, without spaces"},
        description="URL of the collector, e.g. `http://collector:4318`. Unset: "
        "`OTEL_EXPORTER_OTLP_ENDPOINT`.",
    )
    otel_capture_content: bool = Field(
        False,
        description="Put prompts and answers into traces; also"
        " `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`.",
    )

    @classmethod
    def standard(cls, environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """OpenTelemetry's own variables in place of a setting."""
        standard_of(environ)  # refused before anything starts
        found = (
            {"otel_capture_content": (_CAPTURE, environ[_CAPTURE])} if environ.get(_CAPTURE) else {}
        )
        if (endpoint := next((name for name in _ENDPOINTS if environ.get(name)), None)) is not None:
            is_disabled = environ.get(_DISABLED, "").lower() == "true"
            found["enable_otel"] = endpoint, "false" if is_disabled else "true"
        return found


SETTINGS = OtelSettings
