"""Limits that the kernel's control groups put on this process, versions 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED_BYTES = 1 << 60  # version 1 writes a huge number where version 2 writes 'max'


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """The tightest limits of this process's group and its parents; None: unlimited."""

    num_cores: float | None = None
    memory_bytes: int | None = None
    used_bytes: int | None = None  # of the group with that limit, without reclaimable file cache


def read_limits(proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup")) -> CgroupLimits:
    """Read the limits; files that do not exist count as no limit."""
    quotas: list[float] = []
    memory: list[tuple[int, int | None]] = []
    for controllers, folder in _folders(proc, root):
        if (quota := _quota(folder, controllers)) is not None:
            quotas.append(quota)
        if (limit := _memory(folder, controllers)) is not None:
            memory.append(limit)
    limit_bytes, used_bytes = min(memory, key=lambda pair: pair[0], default=(None, None))
    return CgroupLimits(min(quotas, default=None), limit_bytes, used_bytes)


def _folders(proc: Path, root: Path) -> Iterator[tuple[str, Path]]:
    """Yield (controllers, folder) from this process's group up to the root.

    Inside a container the path in /proc is often the host's; then only the root,
    which is the container's own group, exists.
    """
    for line in _read(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        mount = root if not controllers else root / controllers
        folder = mount / path.lstrip("/")
        while folder != mount:
            yield controllers, folder
            folder = folder.parent
        yield controllers, mount


def _quota(folder: Path, controllers: str) -> float | None:
    if not controllers:
        fields = _read(folder / "cpu.max").split()
        return int(fields[0]) / int(fields[1]) if fields and fields[0] != "max" else None
    if "cpu" not in controllers.split(","):
        return None
    quota, period = (_integer(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return quota / period if quota and period and quota > 0 else None


def _memory(folder: Path, controllers: str) -> tuple[int, int | None] | None:
    if not controllers:
        names, cache = ("memory.max", "memory.current"), "inactive_file"
    elif "memory" in controllers.split(","):
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        cache = "total_inactive_file"
    else:
        return None
    limit, used = (_integer(folder / name) for name in names)
    if limit is None or limit >= _UNLIMITED_BYTES:
        return None
    return limit, None if used is None else max(0, used - _statistic(folder, cache))


def _statistic(folder: Path, name: str) -> int:
    """Return a figure of memory.stat; cached files are given back when memory is short."""
    rows = (line.split() for line in _read(folder / "memory.stat").splitlines())
    return next((int(row[1]) for row in rows if row[0] == name), 0)


def _integer(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
