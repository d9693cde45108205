"""The settings of OpenTelemetry, and the standard names that can replace them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from service.settings.group import SHAPE, Group

Exporter = Literal["otlp", "console", "none"]
Protocol = Literal["http/protobuf", "grpc"]

# Read when the NIM_ name is not set; the OTLP exporters read OTEL_EXPORTER_OTLP_* themselves.
STANDARD_NAMES = {
    "otel_traces_exporter": "OTEL_TRACES_EXPORTER",
    "otel_metrics_exporter": "OTEL_METRICS_EXPORTER",
    "otel_logs_exporter": "OTEL_LOGS_EXPORTER",
    "otel_exporter_otlp_protocol": "OTEL_EXPORTER_OTLP_PROTOCOL",
    "otel_service_name": "OTEL_SERVICE_NAME",
    "otel_capture_content": "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
}
_DISABLED = "OTEL_SDK_DISABLED"
_ENDPOINTS = tuple(
    f"OTEL_EXPORTER_OTLP_{part}ENDPOINT" for part in ("", "TRACES_", "METRICS_", "LOGS_")
)


class OtelSettings(Group):
    """OpenTelemetry"""

    enable_otel: bool | None = Field(
        None,
        description="Send traces, metrics and logs with OpenTelemetry. Unset: on if an"
        " `OTEL_EXPORTER_OTLP_*ENDPOINT` is set and `OTEL_SDK_DISABLED` is not `true`.",
    )
    otel_traces_exporter: Exporter = Field(
        "otlp", description="`otlp`, `console` or `none`; also `OTEL_TRACES_EXPORTER`."
    )
    otel_metrics_exporter: Exporter = Field(
        "otlp", description="`otlp`, `console` or `none`; also `OTEL_METRICS_EXPORTER`."
    )
    otel_logs_exporter: Exporter = Field(
        "otlp", description="`otlp`, `console` or `none`; also `OTEL_LOGS_EXPORTER`."
    )
    otel_exporter_otlp_endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s]+$",
        json_schema_extra={SHAPE: "a URL that begins with http:// or https://, without spaces"},
        description="URL of the collector, e.g. `http://collector:4318`. Unset: "
        "`OTEL_EXPORTER_OTLP_ENDPOINT`.",
    )
    otel_exporter_otlp_protocol: Protocol = Field(
        "http/protobuf",
        description="`http/protobuf` or `grpc`; also `OTEL_EXPORTER_OTLP_PROTOCOL`.",
    )
    otel_service_name: str = Field(
        "harmonium", min_length=1, description="`service.name`; also `OTEL_SERVICE_NAME`."
    )
    otel_capture_content: bool = Field(
        False,
        description="Put prompts and answers into traces; also"
        " `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`.",
    )

    @classmethod
    def standard(cls, environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """OpenTelemetry's own variables."""
        found = {
            field: (name, environ[name])
            for field, name in STANDARD_NAMES.items()
            if environ.get(name)
        }
        if (endpoint := next((name for name in _ENDPOINTS if environ.get(name)), None)) is not None:
            is_disabled = environ.get(_DISABLED, "").lower() == "true"
            found["enable_otel"] = endpoint, "false" if is_disabled else "true"
        return found


SETTINGS = OtelSettings
