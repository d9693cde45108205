"""Kernels compiled on all cores, beside the load of the weights.

A start without compiled kernels would compile one after the other while it captures its graphs.
Here a thread holds the part's lock, and processes without a GPU (offline/ahead.py) compile what
this start will launch. Another engine of this host that wants the part waits for the lock and finds
it made: each kernel is compiled once. Whatever fails here is compiled later, as it is launched.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from engines import start_steps
from engines.live_folder import live_folder
from engines.native.artefact.store import NotKept, Part, Store
from engines.native.backends.cuda.artefact.compiled_kernels import place_of, recipe

_PROGRAM: Final = "engines.native.backends.cuda.offline.ahead"
_FEWEST_CORES: Final = 4  # with fewer, processes that import torch first gain nothing
_STUCK_S: Final = 120.0  # without another kernel: longer than any takes
_LOOK_S: Final = 0.5  # how often readiness tells how many there are

Tell = Callable[[str], None]
Compile = Callable[[Path, Tell], None]
"""Fill a folder with compiled kernels; `tell` gets how many there are. Raises OSError."""

log = logging.getLogger(__name__)


def compile_ahead(
    store: Store | None, part: Part, prebuilt: Store, num_cores: int, compile_into: Compile
) -> Callable[[], None]:
    """Begin to compile kernels, if no start has left them; returns what waits for them."""
    is_there = prebuilt.slot(part).why_not() is None
    if store is None or is_there or num_cores < _FEWEST_CORES or store.slot(part).why_not() is None:
        return lambda: None
    making = _Making(store, part, compile_into)
    making.start()
    return making.wait


class _Making(threading.Thread):
    """Makes the part; ends with the process, which takes those that compile with it."""

    def __init__(self, store: Store, part: Part, compile_into: Compile) -> None:
        super().__init__(name="compile-ahead", daemon=True)
        self._store, self._part, self._compile = store, part, compile_into
        self._progress = ""

    def run(self) -> None:
        try:
            with self._store.alone(self._part) as slot:
                if slot.why_not() is None:  # another engine made it
                    return
                with live_folder(place_of(self._store)) as folder:
                    began_s = time.monotonic()
                    self._compile(folder, self._tell)
                    slot.make(recipe(folder), is_anew=True)
                    taken_s = time.monotonic() - began_s
            log.info("Compiled GPU kernels side by side, %s, in %.1f s", self._progress, taken_s)
        except (NotKept, OSError, ValueError) as reason:
            log.warning("GPU kernels are compiled one after the other: %s", reason)

    def _tell(self, progress: str) -> None:
        self._progress = progress

    def wait(self) -> None:
        """Wait until they are compiled, and say how many are."""
        while self.is_alive():
            start_steps.begin(f"compiling GPU kernels, {self._progress or 'on all cores'}")
            self.join(_LOOK_S)


def compile_in_processes(wanted: Mapping[str, Any]) -> Compile:
    """Return what compiles in processes of its own; `wanted`: for offline/ahead.py."""

    def compile_into(folder: Path, tell: Tell) -> None:
        with subprocess.Popen(
            [sys.executable, "-m", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(json.dumps({**wanted, "folder": str(folder)}) + "\n")
            child.stdin.flush()
            watch = _kill_after(child, _STUCK_S)
            for line in child.stdout:
                watch.cancel()
                watch = _kill_after(child, _STUCK_S)
                tell(line.strip())
            watch.cancel()
        if child.returncode:
            raise OSError(f"the compiling process ended with {child.returncode}")

    return compile_into


def _kill_after(child: subprocess.Popen[str], seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, child.kill)
    timer.daemon = True
    timer.start()
    return timer
