"""Ranks add up the same sums, whatever they send, and leave their buffers empty."""

from __future__ import annotations

import torch

from tests.engines.native.cuda.kernels.kernel_fixtures import DEVICE

from engines.native.backends.cuda.ranks.exchange import LinkSide, Links  # isort: skip

ROWS, HIDDEN = 3, 32
EMPTY = -(1 << 31)


def added(side: LinkSide, x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Add the rank's part to x with those of the others; the normed rows."""
    rows, hidden = x.shape
    normed = torch.zeros(rows, hidden, dtype=torch.bfloat16, device=DEVICE)
    ones = torch.ones(rows, device=DEVICE)
    side.add_norm(
        x, part, ones, ones.new_ones(hidden).bfloat16(), normed, normed, rows=rows, top_k=1, eps=0.0
    )
    return normed


def test_all_ranks_get_the_sum_and_its_norm() -> None:
    """What one rank sends is there before the next one looks, so one device can be both."""
    links = Links([DEVICE, DEVICE], HIDDEN, ROWS)
    parts = [torch.randn(ROWS, HIDDEN, device=DEVICE) for _ in range(2)]
    parts[0][0, :4] = torch.tensor([-0.0, 0.0, -0.0, 1.0])  # the bits that mean: not here yet
    parts[1][0, :2] = -0.0
    start = torch.randn(ROWS, HIDDEN, device=DEVICE)
    added(links.sides[0], start.clone(), parts[0])  # waits for nothing: they are not open
    first = links._buffers[1].clone()
    links.open()
    links._buffers[1].copy_(first)
    x = start.clone()
    normed = added(links.sides[1], x, parts[1])
    expected = start + (parts[0] + parts[1])
    torch.testing.assert_close(x, expected)
    scale = expected.square().mean(1, keepdim=True).rsqrt()
    torch.testing.assert_close(normed.float(), expected * scale, atol=0.02, rtol=0.02)
    assert set(links._buffers[1].tolist()) == {EMPTY}
    other = start.clone()
    links.sides[0]._calls = 0  # the same exchange again, now that both have sent
    added(links.sides[0], other, parts[0])
    assert torch.equal(other, x)


def test_a_graph_has_an_even_number_of_exchanges() -> None:
    """Else the next one would begin with a turn whose parts the others have not taken yet."""
    side = Links([DEVICE, DEVICE], HIDDEN, ROWS).sides[0]
    x = torch.ones(ROWS, HIDDEN, device=DEVICE)
    for num in (1, 2, 3):
        for _ in range(num):
            added(side, x, x)
        side.finish()
        assert side._calls % 2 == 0


def test_more_rows_than_a_buffer_holds_go_in_pieces() -> None:
    links = Links([DEVICE, DEVICE], HIDDEN, ROWS)
    part = torch.randn(2 * ROWS + 1, HIDDEN, device=DEVICE)
    x = torch.ones_like(part)
    before = links.sides[0]._calls
    added(links.sides[0], x, part)
    assert links.sides[0]._calls - before == 3
