"""What a step sends to the other ranks: the batch, and the tokens that they have not seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engines.native.backends.base import Batch
from engines.native.host.slots import Slots, Span


class RankStep(NamedTuple):
    """One step. Only the first rank samples, so it tells what it has sampled since."""

    batch: Batch
    sampled: tuple[tuple[int, ...], ...]  # of each row's slot


class Planner:
    """The first rank's: knows which tokens of each slot it has sent."""

    def __init__(self) -> None:
        self._num_sent: dict[int, int] = {}

    def plan(self, batch: Batch, spans: Sequence[Span]) -> RankStep:
        """`spans`: of the batch's rows, its starts and blocks applied."""
        for start in batch.starts:
            self._num_sent[start.slot] = len(start.token_ids)
        sampled = []
        for row, span in zip(batch.rows, spans, strict=True):
            num_sent = self._num_sent[row.slot]
            sampled.append(tuple(span.slot.token_ids[num_sent : row.end]))
            self._num_sent[row.slot] = max(num_sent, row.end)
        return RankStep(batch, tuple(sampled))


def follow(plan: RankStep, slots: Slots) -> list[Span]:
    """Bring another rank's slots to where the first's are; returns the rows as spans."""
    spans = slots.apply(plan.batch)
    for span, token_ids in zip(spans, plan.sampled, strict=True):
        span.slot.token_ids += token_ids
    return spans
