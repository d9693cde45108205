"""torch's CPU attention kernel and its plain reference agree; a chunk sees what it may see."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engines.base import SamplingParams
from engines.native.backends.base import SlotStart
from engines.native.backends.cpu.attention import Attention, LayoutBuilder, attend, attend_reference
from engines.native.host.slots import Slot, Span
from tests.close import assert_close


@pytest.mark.parametrize(("num_queries", "num_keys"), [(1, 1), (4, 208), (70, 1100)])
def test_kernel_agrees_with_reference(num_queries: int, num_keys: int) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 3, num_queries, 16)
    k, v = torch.randn(2, 2, 3, num_keys, 16)
    hidden = torch.rand(num_queries, num_keys) < 0.9
    hidden[:, -1] = False
    mask = torch.zeros(num_queries, num_keys).masked_fill(hidden, -1e30)
    _assert_agree(q, k, v, mask)


def test_kernel_agrees_with_reference_on_what_is_seen_without_a_mask() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 300, 16)
    _assert_agree(q, k, v, None)


def _assert_agree(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    for ours, reference in zip(
        attend(q, k, v, mask, 0.25), attend_reference(q, k, v, mask, 0.25), strict=True
    ):
        assert_close(ours, reference, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("start", [0, 37, 300])
@pytest.mark.parametrize("window", [40, 200, None])
def test_each_query_of_a_chunk_sees_its_window_and_nothing_after_it(
    start: int, window: int | None
) -> None:
    torch.manual_seed(0)
    end, table = start + 150, tuple(range(1, 30))
    slot = Slot(SlotStart(0, (7,) * end, end, table, table, SamplingParams(max_tokens=1), 0))
    builder = LayoutBuilder(16, window or 40, torch.float32, torch.device("cpu"))
    layout = builder.build([Span(slot, start, end, is_last=True)])
    groups = layout.full.groups if window is None else layout.sliding.groups
    q, cache, sinks = torch.randn(150, 6, 8), torch.randn(30, 16 * 2 * 2 * 8), torch.randn(6)
    found = Attention(sinks, 2, 8)(q, cache, groups)
    expected = _attention(q, cache[1:].view(-1, 2, 2, 8)[:end], sinks, start, window or end)
    assert_close(found, expected.flatten(1), atol=1e-5, rtol=1e-5)


def _attention(q: Tensor, kv: Tensor, sinks: Tensor, start: int, window: int) -> Tensor:
    """q (queries, 6, 8) at positions from `start` on, kv (keys, 2, 2 heads, 8), written out."""
    k, v = kv.repeat_interleave(3, dim=2).unbind(1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * 8**-0.5
    behind = (start + torch.arange(len(q)))[:, None] - torch.arange(len(kv))
    scores = scores.masked_fill((behind < 0) | (behind >= window), -torch.inf)
    sink = sinks[:, None, None].expand(-1, len(q), 1)
    weights = torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]
    return torch.einsum("hqk,khd->qhd", weights, v)
