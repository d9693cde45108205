"""What host memory holds, as series."""

from __future__ import annotations

from typing import Final

from service.telemetry.series import EngineSeries, counter, gauge

SERIES: Final[tuple[EngineSeries, ...]] = (
    gauge("host_kv_blocks", "KV blocks that fit in host memory.", lambda s: s.num_host_kv_blocks),
    gauge(
        "host_kv_used_blocks",
        "KV blocks in host memory.",
        lambda s: s.num_used_host_kv_blocks,
    ),
    counter(
        "host_cache_hits",
        "Prompt tokens whose K/V were copied from host memory.",
        lambda s: s.host_cache_hits,
    ),
    counter(
        "host_kv_saved_bytes", "Bytes of K/V copied to host memory.", lambda s: s.host_bytes_saved
    ),
    counter(
        "host_kv_loaded_bytes",
        "Bytes of K/V copied from host memory to the device.",
        lambda s: s.host_bytes_loaded,
    ),
)
