"""Which sequences are attended to in one call."""

from __future__ import annotations

import pytest

from engines.base import EngineRequest, SamplingParams
from engines.native.batch import split_runs
from engines.native.scheduler import Chunk
from engines.native.sequence import Sequence


def chunk(num_computed_tokens: int, num_tokens: int = 1) -> Chunk:
    request = EngineRequest("r", (1,) * 9000, SamplingParams(max_tokens=1))
    sequence = Sequence(request, max_model_len=9001)
    sequence.num_computed_tokens = num_computed_tokens
    return Chunk(sequence, num_tokens)


def test_chunks_stand_alone_and_first_and_decodes_of_like_length_together() -> None:
    lengths = [30, 4000, 900, 200]
    chunks = [*map(chunk, lengths), chunk(0, 50), chunk(8, 2)]
    assert split_runs(chunks) == [[4], [5], [1], [2], [3, 0]]


@pytest.mark.parametrize(
    ("max_tokens", "sizes"), [(None, [10]), (1000, [10]), (999, [5, 5]), (400, [4, 4, 2])]
)
def test_decodes_have_so_much_to_attend_to_at_most(
    max_tokens: int | None, sizes: list[int]
) -> None:
    runs = split_runs([chunk(99) for _ in range(10)], max_tokens)
    assert [len(run) for run in runs] == sizes
    assert [index for run in runs for index in run] == list(range(10))


def test_one_decode_is_never_too_much() -> None:
    assert split_runs([chunk(99), chunk(99)], max_tokens=50) == [[0], [1]]
