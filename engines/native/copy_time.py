"""Keeps the copies between device and host within the longest gap between two tokens.

Copies run beside the step that they come with; the next step waits for those that load.
"""

from __future__ import annotations

from typing import Final

from engines.native.block_manager import BlockManager

_MOST: Final = 0.5  # of the gap: with more than that to copy no other request is begun in a step


class CopyTime:
    """How long copies take, in seconds, and what they leave of the next step."""

    def __init__(self, blocks: BlockManager, max_gap_s: float | None) -> None:
        self._blocks, self._max_gap_s = blocks, max_gap_s
        self._late_s = 0.0  # how much longer than the last step its copies take

    @property
    def is_long(self) -> bool:
        """Whether the next step has as many copies as it may."""
        return self._max_gap_s is not None and self._blocks.copying_s >= _MOST * self._max_gap_s

    def left_of(self, gap_s: float | None) -> float | None:
        """A gap, less what the next step may wait for copies."""
        return None if gap_s is None else max(gap_s - self._late_s, (1 - _MOST) * gap_s)

    def note(self, step_s: float) -> None:
        """Note that the step with the copies up to now takes so long."""
        self._late_s = max(self._blocks.copying_s - step_s, 0.0)
