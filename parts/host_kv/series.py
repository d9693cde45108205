"""What host memory holds, as series."""

from __future__ import annotations

from typing import Final

from service.telemetry.series import EngineSeries, counter, gauge

SERIES: Final[tuple[EngineSeries, ...]] = (
    gauge("host_kv_blocks", "KV blocks that fit in host memory."),
    gauge("host_kv_used_blocks", "KV blocks in host memory."),
    counter("host_cache_hits", "Prompt tokens whose K/V were copied from host memory."),
    counter("host_kv_saved_bytes", "Bytes of K/V copied to host memory."),
    counter("host_kv_loaded_bytes", "Bytes of K/V copied from host memory to the device."),
)
