"""What an engine does while it starts, for the reason that readiness gives; how long each took.

The engine's thread says it; the host of this process reports it to the parent.
"""

from __future__ import annotations

import time

_current = ""
_began_s = 0.0
_seconds: dict[str, float] = {}  # by phase


def begin(step: str) -> None:
    """Name the step of the start that begins now, such as "compiling kernels, 12 of 80".

    What is before a comma is its phase.
    """
    global _current, _began_s
    now_s = time.monotonic()
    _add(now_s)
    _current, _began_s = step, now_s


def current() -> str:
    """Return the step that was named last; empty before the first."""
    return _current


def end() -> str:
    """End the last step; return the seconds of each phase of this start, and forget them."""
    global _current
    _add(time.monotonic())
    told = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in _seconds.items())
    _current = ""
    _seconds.clear()
    return told


def _add(now_s: float) -> None:
    if _current:
        phase = _current.partition(",")[0]
        _seconds[phase] = _seconds.get(phase, 0.0) + now_s - _began_s
