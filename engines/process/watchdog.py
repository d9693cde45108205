"""Tells from a child process's reports whether it hangs."""

from __future__ import annotations

from engines.process.wire import (
    HEARTBEAT_S,
    Alive,
    LifeMessage,
    Ready,
)


class Watchdog:
    """Counts silence in its owner's turns and standstill in the engine's own beats.

    So a pause of one of the two, or of the whole machine, is not taken for a hang.
    """

    def __init__(
        self, hang_timeout_s: float, step_timeout_s: float, start_timeout_s: float = 300.0
    ) -> None:
        self._patience_s = start_timeout_s  # starting may take longer than a step ever does
        self._hang_timeout_s = min(hang_timeout_s, step_timeout_s)
        self._step_timeout_s = step_timeout_s
        self._silent_s = 0.0
        self._still_s = 0.0
        self._work_done = 0

    def on_turn(self, seconds: float) -> None:
        """So long nothing was heard."""
        self._silent_s += seconds

    def on_report(self, report: LifeMessage) -> None:
        """The process said something."""
        self._silent_s = 0.0
        if isinstance(report, Ready):
            self._patience_s = self._hang_timeout_s
        if isinstance(report, Alive):
            is_still = report.is_running and report.work_done == self._work_done
            self._still_s = self._still_s + HEARTBEAT_S if is_still else 0.0
            self._work_done = report.work_done

    @property
    def verdict(self) -> str | None:
        """What is wrong with the process, if anything."""
        if self._silent_s >= self._patience_s:
            return f"it did not answer for {self._patience_s:g} s"
        if self._still_s >= self._step_timeout_s:
            return f"it ran requests and did nothing for {self._step_timeout_s:g} s"
        return None
