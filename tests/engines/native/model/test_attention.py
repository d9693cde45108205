"""torch's CPU attention kernel and its plain reference agree."""

from __future__ import annotations

import pytest
import torch

from engines.native.backends.cpu.attention import attend, attend_reference


@pytest.mark.parametrize(("num_queries", "num_keys"), [(1, 1), (4, 208), (70, 1100)])
def test_kernel_agrees_with_reference(num_queries: int, num_keys: int) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 3, num_queries, 16)
    k, v = torch.randn(2, 2, 3, num_keys, 16)
    hidden = torch.rand(num_queries, num_keys) < 0.9
    hidden[:, -1] = False
    mask = torch.zeros(num_queries, num_keys).masked_fill(hidden, -1e30)
    for ours, reference in zip(
        attend(q, k, v, mask, 0.25), attend_reference(q, k, v, mask, 0.25), strict=True
    ):
        torch.testing.assert_close(ours, reference, atol=1e-5, rtol=1e-5)
