"""Which of a step's rows are prefilled and which decoded; and answers that are decoded again.

Rows that decode may be part of the chunk of prompts beside them: the weights are then read once.

K/V that decoding leaves differ in their last bits from those that a chunk of a prompt leaves.
Where equal requests are to get equal bits, an answer's tokens are therefore decoded also when they
are known already, after a preemption or a restart: as many at once as a step has rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from engines.native.backends.base import Row


class Places(NamedTuple):
    """Rows, or parts of rows, and their places in the batch."""

    rows: list[Row]
    indices: list[int]

    def add(self, row: Row, index: int) -> None:
        self.rows.append(row)
        self.indices.append(index)


class BatchParts(NamedTuple):
    """A batch's rows by what computes them, in this order."""

    prefilled: Places
    replayed: list[Row]  # decoded, of one known token each; nothing is sampled after them
    decoded: Places


def cheapest_parts(rows: tuple[Row, ...]) -> BatchParts:
    """Decode whatever is one token and the last, the others as chunks."""
    are_one = [row.is_last and row.end - row.start == 1 for row in rows]
    if all(are_one):  # as in most steps
        return BatchParts(Places([], []), [], Places([*rows], [*range(len(rows))]))
    parts = BatchParts(Places([], []), [], Places([], []))
    for i, (row, is_one) in enumerate(zip(rows, are_one, strict=True)):
        (parts.decoded if is_one else parts.prefilled).add(row, i)
    return parts


def joined(parts: BatchParts, most_tokens: int) -> BatchParts:
    """Decode rows as tokens of the chunk, if there is one with room for all of them.

    Rows with drafts are verified in a step of their own. What a chunk scores is a prompt's.
    """
    chunk, rows = parts.prefilled, parts.decoded.rows
    num = sum(row.end - row.start for row in chunk.rows) + len(rows)
    is_apart = any(row.drafts or row.prompt_logprobs is not None for row in rows)
    if not chunk.rows or num > most_tokens or is_apart:
        return parts
    together = Places(chunk.rows + rows, chunk.indices + parts.decoded.indices)
    return BatchParts(together, parts.replayed, Places([], []))


def equal_parts(rows: tuple[Row, ...], num_prompt_tokens: Callable[[int], int]) -> BatchParts:
    """Prefill prompts, `num_prompt_tokens` of a slot, and decode answers."""
    parts = BatchParts(Places([], []), [], Places([], []))
    for i, row in enumerate(rows):
        answer = min(max(num_prompt_tokens(row.slot), row.start), row.end)  # where it begins
        is_decoded = row.is_last and answer < row.end
        if answer > row.start:
            is_last = row.is_last and not is_decoded
            parts.prefilled.add(row._replace(end=answer, is_last=is_last), i)
        for at in range(answer, row.end - is_decoded):
            parts.replayed.append(row._replace(start=at, end=at + 1, is_last=False, drafts=()))
        if is_decoded:
            parts.decoded.add(row._replace(start=row.end - 1), i)
    return parts
