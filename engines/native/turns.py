"""The order in which sequences continue."""

from __future__ import annotations

from engines.native.sequence import Sequence


def much_shorter(later: list[Sequence]) -> list[Sequence]:
    """Those that have at most half as much left as the first, which keeps a part of the step."""
    most = later[0].num_schedulable_tokens // 2 if later else 0
    shorter = [sequence for sequence in later[1:] if sequence.num_schedulable_tokens <= most]
    return sorted(shorter, key=shortest)


def shortest(sequence: Sequence) -> tuple[int, int]:
    """A key that puts the most urgent first, and of these the shortest."""
    return sequence.rank[0], sequence.num_schedulable_tokens


def rank(sequence: Sequence) -> tuple[int, int]:
    """A key that puts the most urgent first, and of these the first that was admitted."""
    return sequence.rank
