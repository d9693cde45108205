"""How far a download is: a line that changes on a terminal, lines of the log elsewhere."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from profiles.hardware.machine import GB

log = logging.getLogger(__name__)

_LINE_EVERY_S, _DRAWN_EVERY_S = 10.0, 0.2
_RATE_OVER_S = 60.0  # the latest, so that a line that grew slow or fast is shown as it is now
MB, KB = 10**6, 10**3
_running: list[Progress] = []  # in this process; the last one is shown


class Stopped(Exception):
    """The download has to stop: Ctrl-C was pressed, or another file failed."""


class Progress:
    """Bytes fetched so far, of all files together; threads add to it."""

    def __init__(
        self,
        title: str,
        total_bytes: int,
        have_bytes: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._total, self._have, self._done = title, total_bytes, have_bytes, 0
        self._clock, self._told = clock, clock()
        self._seen = deque([(self._told, 0)])  # times of the last minute, and bytes until then
        self._lock = threading.Lock()
        self.is_stopped = threading.Event()
        self._is_terminal = sys.stderr.isatty()

    def __enter__(self) -> Self:
        _running.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _running.remove(self)
        if self._is_terminal:
            self._draw("\n")

    @property
    def have_bytes(self) -> int:
        return self._have + self._done

    @property
    def total_bytes(self) -> int:
        return self._total

    def stop(self) -> None:
        """Let every thread end with `Stopped` at the next bytes it receives."""
        self.is_stopped.set()

    def add(self, num_bytes: int) -> None:
        """Count bytes that came (negative: they were thrown away); raises Stopped after stop()."""
        if self.is_stopped.is_set():
            raise Stopped
        with self._lock:
            self._done += num_bytes
            every = _DRAWN_EVERY_S if self._is_terminal else _LINE_EVERY_S
            if self._clock() - self._told < every:
                return
            self._told = self._clock()
            self._seen.append((self._told, self._done))
            while len(self._seen) > 2 and self._seen[1][0] <= self._told - _RATE_OVER_S:
                self._seen.popleft()
        if self._is_terminal:
            self._draw("")
        else:
            log.info("%s", self.line())

    def _draw(self, end: str) -> None:
        width = shutil.get_terminal_size().columns - 1  # a line that wraps cannot be drawn over
        sys.stderr.write(f"\r{self.line()[:width]:<{min(width, 78)}}{end}")
        sys.stderr.flush()

    def line(self) -> str:
        """`gpt-oss-20b: 3.1 of 13.8 GB (22 %), 118 MB/s, about 1 min 31 s more`."""
        since, had = self._seen[0]
        came = max(self._done - had, 0)
        rate = came / max(self._clock() - since, 1e-3)
        have = self._have + self._done
        is_telling = came >= MB  # not while connections are being made
        more = f", about {span(max(self._total - have, 0) / rate)} left" if is_telling else ""
        unit, name = (GB, "GB") if self._total >= GB else (MB, "MB")
        return (
            f"{self._title}: {have / unit:.1f} of {self._total / unit:.1f} {name} "
            f"({have / max(self._total, 1):.0%}), {speed(rate)}{more}"
        )


def running() -> Progress | None:
    return _running[-1] if _running else None


def stop_all() -> None:
    """Stop every download of this process; the downloaded parts are kept."""
    for progress in list(_running):
        progress.stop()


def amount(num_bytes: int) -> str:
    """A size as a person reads it: `13.8 GB`, `27.9 MB`, `2 kB`."""
    for unit, name in ((GB, "GB"), (MB, "MB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes / KB:.0f} kB"


def num_files(count: int) -> str:
    """'1 file' or '3 files'."""
    return "1 file" if count == 1 else f"{count} files"


def speed(bytes_per_s: float) -> str:
    """A rate as a person reads it: `118 MB/s`, `1.4 MB/s`, `80 kB/s`."""
    if bytes_per_s >= 10 * MB:
        return f"{bytes_per_s / MB:.0f} MB/s"
    if bytes_per_s >= MB:
        return f"{bytes_per_s / MB:.1f} MB/s"
    return f"{bytes_per_s / KB:.0f} kB/s"


def span(seconds: float) -> str:
    """A duration as a person says it: `45 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
