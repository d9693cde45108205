"""Measures the event loops of the attacked server from within; Python imports it at its start.

Every process of the server finds this folder in PYTHONPATH. A timer of its loop notes the CPU
time and the clock between two of its calls: in an idle loop `BEAT_S`, and at most that much more
than the longest single turn. A thread notes what such a turn is at.
"""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

from tests.attack.meter import BEAT_S, FOLDER, LAYOUT, Reading

_LONG_S = 0.02  # of a turn whose whereabouts are of interest
_LOOK_S = 0.004


class _Meter:
    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(LAYOUT.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), LAYOUT.size)
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._places: Counter[str] = Counter()
        self._gc_began_s = self._gc_s = 0.0
        self._take()
        gc.callbacks.append(self._on_gc)
        threading.Thread(target=self._look, daemon=True).start()
        self._loop.call_later(BEAT_S, self._beat)

    def _take(self) -> None:
        self._clock_s, self._loop_cpu_s = time.monotonic(), time.thread_time()
        self._all_cpu_s = time.process_time()
        self._gc_s = 0.0
        self._places.clear()

    def _beat(self) -> None:
        loop_cpu_s = time.thread_time() - self._loop_cpu_s
        all_cpu_s = time.process_time() - self._all_cpu_s
        late_s = time.monotonic() - self._clock_s - BEAT_S
        worst = Reading.read(self._memory)
        place = max(self._places, key=self._places.__getitem__, default="")
        Reading(
            max(worst.turn_cpu_s, loop_cpu_s),
            max(worst.process_cpu_s, all_cpu_s),
            max(worst.late_s, late_s),
            max(worst.gc_s, self._gc_s),
            place if loop_cpu_s > worst.turn_cpu_s else worst.place,
        ).write(self._memory)
        self._take()
        self._loop.call_later(BEAT_S, self._beat)

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            if time.monotonic() - self._clock_s > _LONG_S:
                frame = sys._current_frames().get(self._thread_id)
                if frame is not None:
                    self._places[_place(frame)] += 1

    def _on_gc(self, phase: str, _info: dict[str, int]) -> None:
        if threading.get_ident() != self._thread_id:
            return
        now = time.thread_time()
        if phase == "start":
            self._gc_began_s = now
        else:
            self._gc_s += now - self._gc_began_s


def _place(frame: FrameType | None) -> str:
    """The innermost functions of ours and of all, with the line."""
    names: list[str] = []
    while frame is not None and len(names) < 4:
        path = Path(frame.f_code.co_filename)
        is_ours = {"service", "engines"} & set(path.parts) and "site-packages" not in path.parts
        if not names or is_ours:
            names.append(f"{path.stem}.{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(names)


def _metered(run: Any, path: Path) -> Any:
    async def begin(work: Coroutine[Any, Any, Any]) -> Any:
        _Meter(path)
        return await work

    def metered(self: asyncio.Runner, work: Coroutine[Any, Any, Any], **more: Any) -> Any:
        return run(self, begin(work), **more)

    return metered


_ROLES = {"service.run.worker": "api", "engines.process.host": "engine"}
_role = next((_ROLES[word] for word in sys.orig_argv if word in _ROLES), None)
if _role is not None and FOLDER in os.environ:
    _path = Path(os.environ[FOLDER]) / f"{_role}.meter"
    asyncio.Runner.run = _metered(asyncio.Runner.run, _path)  # type: ignore[method-assign]
