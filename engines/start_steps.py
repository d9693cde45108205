"""What an engine does while it starts, for the reason that readiness gives.

The engine's thread says it; the host of this process reports it to the parent.
"""

from __future__ import annotations

_current = ""


def begin(step: str) -> None:
    """Name the step of the start that begins now, such as "compiling kernels"."""
    global _current
    _current = step


def current() -> str:
    """Return the step that was named last; empty before the first."""
    return _current
