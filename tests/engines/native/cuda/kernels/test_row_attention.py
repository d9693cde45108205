"""The attention of a chunk's decoding rows against the reference, in one part and in several."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from tests.engines.native.cuda.kernels.kernel_fixtures import (
    DEVICE,
    IS_GPU,
    model_config,
    relative_error,
)
from tests.engines.native.cuda.kernels.test_prefill_attention import (
    KV_HEADS,
    RUNS,
    Chunk,
)

from engines.native.backends.cuda.kernels import row_attention  # isort: skip
from engines.native.backends.cuda.kernels.launch import launch  # isort: skip
from engines.native.backends.cuda.memory.part_sums import PartSums, most_parts  # isort: skip
from engines.native.backends.cuda.steps.row_parts import (  # isort: skip
    DecodingRow,
    parts_of,
)


def last_rows() -> list[DecodingRow]:
    """Of each run the last token."""
    ends = [sum(num for _, num in RUNS[: i + 1]) for i in range(len(RUNS))]
    return [
        DecodingRow(slot, end - 1, start + num - 1)
        for slot, (end, (start, num)) in enumerate(zip(ends, RUNS, strict=True))
    ]


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("least", [128 if IS_GPU else 16, 8192])
def test_rows(least: int, is_fp8: bool, block: int) -> None:
    """Twice: the second launch finds the counters as the first one left them."""
    chunk, rows = Chunk(block, is_fp8=is_fp8), last_rows()
    parts = parts_of(rows, least)
    assert (len(parts) > len(rows)) == (least < 8192)
    spare = torch.full((5, parts.shape[1]), -1, dtype=torch.int32)  # beyond num_parts: not read
    sums = PartSums(model_config(), len(parts), DEVICE)
    expected = chunk.expected(0).view(len(chunk.q), -1)
    taken = torch.tensor([row.row for row in rows], device=DEVICE)
    shared = chunk.shared(0)
    del shared["WINDOW"], shared["num_warps"]
    for _ in range(2):
        chunk.out.fill_(float("nan"))
        launch(
            row_attention.row_attention_kernel, (KV_HEADS, 3), chunk.scaled, chunk.cache,
            chunk.tables, chunk.sinks, torch.cat((parts, spare)).to(DEVICE),
            torch.tensor([len(parts)], dtype=torch.int32, device=DEVICE), sums.out, sums.peak,
            sums.total, sums.arrivals, chunk.out, BT=64 if least >= 64 else 16, STAGES=3,
            num_warps=2, **shared,
        )  # fmt: skip
        assert relative_error(chunk.out[taken], expected[taken]) < 5e-3
    others = torch.ones(len(chunk.q), dtype=torch.bool, device=DEVICE)
    others[taken] = False
    assert bool(chunk.out[others].isnan().all())
    assert not sums.arrivals.any()


def test_parts_cover_each_context_once_and_are_never_too_many() -> None:
    positions = [0, 511, 512, 131_071, *range(1000, 120_000, 1501)]
    rows = [DecodingRow(i, 7 * i, position) for i, position in enumerate(positions)]
    parts = parts_of(rows, 512).tolist()
    assert len(parts) <= most_parts(len(rows))
    for slot, row, position in rows:
        its = [part for part in parts if part[0] == slot]
        assert [part[1] for part in its] == [row] * len(its)
        assert [its[0][2], its[-1][3]] == [0, position + 1]
        assert all(one[3] == other[2] for one, other in pairwise(its))
        assert all(part[2] % 128 == 0 for part in its)
        assert {(part[4], part[5]) for part in its} == {(parts.index(its[0]), len(its))}
    assert parts_of([], 512).shape == (0, 6)
