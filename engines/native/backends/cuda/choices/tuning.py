"""Which variants are worth measuring on a card, and which of them win.

One part of a step after another, from the variants of the architecture's table: each neighbour
that differs in one value is measured, and the fastest that gives the same logits is kept if it is
faster by more than noise.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final, Protocol

from engines.native.backends.cuda.choices.variants import (
    Choices,
    Grouped,
    StreamLaunch,
    Table,
    Tiles,
)


class Steps(Protocol):
    """Decode steps of a model on the card."""

    def prepare(self, rows: int, choices: list[Choices], parts: frozenset[str]) -> None: ...

    def time(self, rows: int, choices: Choices, parts: frozenset[str]) -> float | None:
        """Milliseconds of these parts of a step of this many rows; None if they do not run here."""
        ...

    def agree(self, rows: int, choices: Choices, others: Choices) -> bool:
        """Whether a step gives the same logits with both, but for rounding."""
        ...


_LESS: Final = 0.98  # of the time before: a smaller gain may be noise
_MOST_SPLITS: Final = 16
_MOST_ROWS_SPLIT: Final = 2048  # rows times splits: buffers.py has room for this many parts
_GROUPS: Final = {
    "qkv": frozenset({"qkv"}),
    "out": frozenset({"out"}),
    "head": frozenset({"head"}),
    "attention": frozenset({"attention"}),
    "experts": frozenset({"router", "gate_up", "down"}),
}
"""The parts that are measured together: those that one value changes."""
_STREAMS: Final = (
    StreamLaunch(1, 2, 1, stages=2),
    StreamLaunch(2, 4, 1, stages=2),
    StreamLaunch(4, 4, 1),
    StreamLaunch(4, 8, 2),
    StreamLaunch(1, 1, 1),
    StreamLaunch(1, 1, 2),
    StreamLaunch(2, 1, 1, side=2),
    StreamLaunch(2, 1, 2, side=2),
    StreamLaunch(2, 1, 2, side=2, registers=128),
    StreamLaunch(1, 1, 1, stages=3),
    StreamLaunch(1, 1, 2, stages=3),
    StreamLaunch(2, 2, 1, stages=3),
    StreamLaunch(4, 4, 1, stages=3),
)

log = logging.getLogger(__name__)


def tuned(table: Table, card_name: str, most_rows: int, steps: Steps) -> Table:
    """The table with the variants that are fastest on this card, for steps up to `most_rows`.

    A variant that computes something else than the table's loses.
    """
    decode = dict(table.decode)
    for bucket in sorted(decode):
        decode[bucket] = _fastest(min(bucket, most_rows), decode[bucket], steps)
        if bucket >= most_rows:
            break
    return replace(table, decode=decode, measured_on=(card_name,))


def _fastest(rows: int, choices: Choices, steps: Steps) -> Choices:
    for group, parts in _GROUPS.items():
        found = [*candidates(group, choices, rows)]
        steps.prepare(rows, found, parts)
        before = steps.time(rows, choices, parts)
        if before is None:
            log.warning("%d rows: %s does not run on this card; not measured", rows, group)
            continue
        timed = [(steps.time(rows, each, parts), each) for each in found]
        faster = [(ms, each) for ms, each in timed if ms is not None and ms < _LESS * before]
        for ms, candidate in sorted(faster, key=itemgetter(0)):
            if steps.agree(rows, candidate, choices):
                log.info("%d rows: %s in %.3f ms instead of %.3f", rows, group, ms, before)
                choices = candidate
                break
            log.warning("%d rows: a faster %s changes the logits; not used", rows, group)
    return choices


def candidates(group: str, choices: Choices, rows: int) -> Iterator[Choices]:
    """Variants of one group of parts, near those given, for steps of this many rows."""
    if group == "attention":
        for name, values in {
            "context_tile": (32, 64, 128),
            "attention_warps": (2, 4, 8),
            "attention_stages": (1, 2, 3),
            "splits": (1, 2, 4, 8, _MOST_SPLITS),
        }.items():
            for each in _changed(choices, name, values):
                if each.splits <= max(_MOST_ROWS_SPLIT // rows, 1):
                    yield each
    elif group == "experts":
        yield from _experts(choices)
    else:
        tiles: Tiles = getattr(choices, group)
        # The sums of parts of a head's inputs would not fit the buffers, which hold hidden rows.
        found = (each for each in _tiles(tiles) if group != "head" or each.splits == tiles.splits)
        changes: list[dict[str, Any]] = [{group: each} for each in found]
        yield from (replace(choices, **change) for change in changes)


def _changed(choices: Choices, name: str, values: tuple[int, ...]) -> Iterator[Choices]:
    changes: list[dict[str, Any]] = [{name: v} for v in values if v != getattr(choices, name)]
    yield from (replace(choices, **change) for change in changes)


def _tiles(tiles: Tiles) -> Iterator[Tiles]:
    if not tiles.bk:  # of one row: whole rows of weights in registers
        yield from (tiles._replace(bn=bn) for bn in (2, 4, 8, 16) if bn != tiles.bn)
        yield from (tiles._replace(num_warps=n) for n in (2, 4, 8) if n != tiles.num_warps)
        return
    yield from (tiles._replace(bn=bn) for bn in (32, 64, 128, 256) if bn != tiles.bn)
    yield from (tiles._replace(bk=bk) for bk in (64, 128) if bk != tiles.bk)
    yield from (tiles._replace(splits=n) for n in (1, 2, 4, 8) if n != tiles.splits)
    yield from (tiles._replace(stages=n) for n in (2, 3, 4, 5) if n != tiles.stages)
    yield from (tiles._replace(num_warps=n) for n in (4, 8) if n != tiles.num_warps)
    yield tiles._replace(is_swapped=not tiles.is_swapped)


def _experts(choices: Choices) -> Iterator[Choices]:
    up, down = choices.gate_up, choices.down
    if isinstance(up, StreamLaunch) and isinstance(down, StreamLaunch):
        # gate_up by stages and side by side came out wrong with Triton 3.6: kernels/experts.py
        yield from (replace(choices, gate_up=each) for each in _STREAMS if each not in (up,))
        yield from (replace(choices, down=each) for each in _STREAMS if each not in (down,))
    elif isinstance(up, Grouped) and isinstance(down, Grouped):
        for bm in (16, 32, 64, 128):  # one list of tiles serves both
            if bm != up.bm:
                tail = min(up.tail, bm // 2 if bm > 16 else 0)
                yield replace(
                    choices,
                    gate_up=up._replace(bm=bm, tail=tail),
                    down=down._replace(bm=bm, tail=tail),
                )
        yield from (replace(choices, gate_up=each) for each in _grouped(up))
        yield from (replace(choices, down=each) for each in _grouped(down))


def _grouped(choice: Grouped) -> Iterator[Grouped]:
    yield from (choice._replace(groups=n) for n in (4, 8) if n != choice.groups)
    yield from (choice._replace(num_warps=n) for n in (4, 8) if n != choice.num_warps)
    yield from (choice._replace(stages=n) for n in (2, 3, 4) if n != choice.stages)
    yield choice._replace(tiles=4 - choice.tiles)  # 1 or 3
