"""Which sequences are attended to in one call."""

from __future__ import annotations

import pytest

from engines.base import SamplingParams
from engines.native.backends.base import SlotStart
from engines.native.backends.cpu.attention import split_runs
from engines.native.host.slots import Slot, Span

SLOT = Slot(SlotStart(0, (1,) * 9000, 1, (), (), SamplingParams(max_tokens=1), seed=0))


def span(start: int, num_tokens: int = 1) -> Span:
    return Span(SLOT, start, start + num_tokens, is_last=True)


def test_long_spans_stand_alone_and_first_and_decodes_of_like_length_together() -> None:
    lengths = [30, 4000, 900, 200]
    spans = [*map(span, lengths), span(0, 50), span(8, 2)]
    assert split_runs(spans) == [[4], [5], [1], [2], [3, 0]]


@pytest.mark.parametrize(
    ("max_tokens", "sizes"), [(None, [10]), (1000, [10]), (999, [5, 5]), (400, [4, 4, 2])]
)
def test_decodes_have_so_much_to_attend_to_at_most(
    max_tokens: int | None, sizes: list[int]
) -> None:
    runs = split_runs([span(99) for _ in range(10)], max_tokens)
    assert [len(run) for run in runs] == sizes
    assert [index for run in runs for index in run] == list(range(10))


def test_one_decode_is_never_too_much() -> None:
    assert split_runs([span(99), span(99)], max_tokens=50) == [[0], [1]]
