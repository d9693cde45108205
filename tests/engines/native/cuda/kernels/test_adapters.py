"""What adapters add to a product's rows."""

from __future__ import annotations

import pytest
import torch

from tests.engines.native.cuda.kernels.kernel_fixtures import (
    DEVICE,
    model_config,
    random,
    relative_error,
)

from engines.native.backends.cuda.memory.adapter_room import AdapterRoom  # isort: skip
from engines.native.backends.cuda.steps.adapted import Adapted, StageAdapters  # isort: skip
from engines.native.backends.cuda.steps.shape import Shape  # isort: skip

NONE = -1


def case(
    of_rows: list[int], places: int = 4, num_rows: int | None = None
) -> tuple[Adapted, StageAdapters]:
    """Random adapters of ranks 3, 16, 40 and 64; `of_rows`: the place of each row's adapter."""
    torch.manual_seed(len(of_rows))
    model, rows = model_config(), len(of_rows)
    own = StageAdapters.allocate(model, AdapterRoom(places, 64), rows, rows, DEVICE)
    own.parts.fill_(float("nan"))
    own.members.fill_(1 << 20)
    for place, rank in enumerate((3, 16, 40, 64)):
        own.ranks[place] = rank
        for down, up in own.pairs.values():
            shape = down[place].unflatten(1, (-1, 64))[:, :, :rank].shape
            down[place].unflatten(1, (-1, 64))[:, :, :rank] = random(*shape).bfloat16()
            up[place, ..., :rank] = random(*up[place, ..., :rank].shape).bfloat16()
    order = torch.randperm(rows)  # row i is of slot order[i]
    of_slots = torch.empty(rows, dtype=torch.int32)
    of_slots[order] = torch.tensor(of_rows, dtype=torch.int32)
    num = torch.tensor([rows if num_rows is None else num_rows], dtype=torch.int32)
    adapted = Adapted(
        Shape(model), own, of_slots.to(DEVICE), rows, order.int().to(DEVICE), num.to(DEVICE)
    )
    adapted.begin(0)  # finds the tiles
    adapted.begin(1)
    return adapted, own


def expected(own: StageAdapters, part: str, place: int, x: torch.Tensor) -> torch.Tensor:
    down, up = (each[place, 1].double() for each in own.pairs[part])
    sizes = [len(up)]
    if part == "qkv":
        model = model_config()
        sizes = [model.q_size, model.kv_size, model.kv_size]
    found = x.double() @ down.T
    products = zip(found.split(64), up.split(sizes), strict=True)
    return torch.cat([up_ @ low for low, up_ in products])


@pytest.mark.parametrize("part", ["qkv", "out"])
@pytest.mark.parametrize(
    ("of_rows", "places"),
    [
        ([2], 4),
        ([0, NONE, 1, 2, 3, 0, NONE], 4),
        ([NONE, NONE, 3], 9),
        ([3] * 17 + [NONE] * 3 + [0, 1] * 2, 4),
        ([NONE] * 480 + [3] * 66 + [0, 1, NONE, 2] * 2, 4),
    ],
    ids=["one", "few", "more places than rows", "shared tiles", "many"],
)
def test_each_row_gets_what_its_adapter_adds(part: str, of_rows: list[int], places: int) -> None:
    adapted, own = case(of_rows, places)
    down, up = own.pairs[part]
    x = random(len(of_rows), down.shape[3], dtype=torch.bfloat16)
    before = random(len(of_rows), up.shape[2])
    y = before.clone()
    adapted.shrink(part, x)
    adapted.expand(part, y)
    for row, place in enumerate(of_rows):
        if place == NONE:
            assert torch.equal(y[row], before[row])
        elif row < 50 or row % 7 == 0:
            added = y[row].double() - before[row].double()
            assert relative_error(added, expected(own, part, place, x[row])) < 1e-2, row


def test_padding_adds_nothing() -> None:
    adapted, own = case([0, 1, 2, 3, 3], num_rows=2)
    x = random(5, own.pairs["out"].down.shape[3], dtype=torch.bfloat16)
    y = torch.zeros(5, own.pairs["out"].up.shape[2], device=DEVICE)
    adapted.shrink("out", x)
    adapted.expand("out", y)
    assert y[:2].any(1).all()
    assert not y[2:].any()


def test_one_row_is_normed_first() -> None:
    adapted, own = case([3])
    k = own.pairs["qkv"].down.shape[3]
    x, gain = random(1, k), random(k, dtype=torch.bfloat16)
    y = torch.zeros(1, own.pairs["qkv"].up.shape[2], device=DEVICE)
    adapted.shrink("qkv", x, gain)
    adapted.expand("qkv", y)
    normed = x / (x.square().mean() + 1e-5).sqrt() * gain
    assert relative_error(y[0], expected(own, "qkv", 3, normed[0])) < 1e-2
