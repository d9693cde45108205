"""How much host memory is free."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Free memory in bytes, within the machine's and the container's limits; None where unknown."""
    limits = [limit for limit in (_machine_bytes(), _container_bytes()) if limit is not None]
    return min(limits, default=None)


def _machine_bytes() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    kib = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if kib is None else int(kib) * 1024


def _container_bytes() -> int | None:
    """What a cgroup v2 limit leaves, file pages that can be dropped not counted as used."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return max(int(limit) - used + int(stat.get("inactive_file", 0)), 0)
