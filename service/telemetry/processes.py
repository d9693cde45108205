"""What the server's processes use: the parent, the API workers, the engines."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

_PARTS = {"engines.process.host": "engine", "service.run.worker": "api"}  # by their module


@dataclass(slots=True)
class ProcessUsage:
    """What the processes of one part of the server use together."""

    cpu_s: float = 0.0
    resident_bytes: int = 0
    open_fds: int = 0
    num_processes: int = 0


def read_processes(parent: int | None = None) -> Mapping[str, ProcessUsage]:
    """Return what each part uses: `server`, `api` and `engine`, with all that they started.

    `parent`: the process id of `harmonium serve`; by default that of this worker's parent.
    """
    usage: defaultdict[str, ProcessUsage] = defaultdict(ProcessUsage)
    try:
        server = psutil.Process(parent or os.getppid())
        _add(usage["server"], server)
        for child in server.children():
            part = usage[_part_of(child)]
            for process in (child, *child.children(recursive=True)):
                _add(part, process)
    except psutil.NoSuchProcess:
        return {}
    return usage


def start_time(parent: int | None = None) -> float:
    """Return when the server was started, in seconds since 1970."""
    return psutil.Process(parent or os.getppid()).create_time()


def _part_of(process: psutil.Process) -> str:
    try:
        words = process.cmdline()
    except psutil.Error:
        return "server"
    return next((part for module, part in _PARTS.items() if module in words), "server")


def _add(part: ProcessUsage, process: psutil.Process) -> None:
    try:
        with process.oneshot():
            times, memory, fds = process.cpu_times(), process.memory_info(), process.num_fds()
    except psutil.Error:  # it ended meanwhile
        return
    part.cpu_s += times.user + times.system
    part.resident_bytes += memory.rss
    part.open_fds += fds
    part.num_processes += 1
