"""The settings of logs and metrics."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings


class TelemetrySettings(BaseSettings):
    """Telemetry"""

    access_log: bool = Field(True, description="Log one line per request.")
    audit_log: Literal["all", "refused"] = Field(
        "refused",
        description="Calls written to the audit log: refused ones, or all. The access log "
        "names the caller of each request as well.",
    )
    metrics_tenants: str | None = Field(
        None,
        max_length=1000,
        description="Tenants with their own metric series, comma-separated; all others are "
        "counted as `other`.",
    )

    @property
    def named_tenants(self) -> list[str]:
        return [name.strip() for name in (self.metrics_tenants or "").split(",") if name.strip()]
