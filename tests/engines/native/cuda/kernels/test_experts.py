"""The experts' kernels against their references."""

from typing import Any

import pytest
import torch

from engines.native.mxfp4 import dequantise
from tests.engines.native.cuda.kernels.kernel_fixtures import (
    DEVICE,
    random,
    random_mxfp4,
    relative_error,
)

from engines.native.backends.cuda.weights import fragment_order  # isort: skip
from engines.native.backends.cuda.kernels import experts, experts_grouped, router  # isort: skip
from tests.engines.native.cuda.kernels import kernel_references  # isort: skip
from engines.native.backends.cuda.kernels.launch import launch  # isort: skip

HIDDEN, INNER, NUM_EXPERTS, TOP_K = 64, 32, 3, 2
PADDED = 192


def padded(inputs: int) -> int:
    """To whole supertiles."""
    return -(-inputs // 192) * 192


class Case:
    """Random experts and routed tokens."""

    def __init__(self, tokens: int, hidden: int = HIDDEN) -> None:
        torch.manual_seed(tokens)
        self.hidden = hidden
        up, down = (
            random_mxfp4(NUM_EXPERTS, 2 * INNER, hidden),
            random_mxfp4(NUM_EXPERTS, hidden, INNER),
        )
        self.up = fragment_order.pack(*up, is_gate_up=True)
        self.down = fragment_order.pack(*down)
        self.up_weight = dequantise(*up, torch.float32).double()
        self.down_weight = dequantise(*down, torch.float32).double()
        self.up_bias = random(NUM_EXPERTS, 2 * INNER, dtype=torch.bfloat16)
        self.down_bias = random(NUM_EXPERTS, hidden, dtype=torch.bfloat16)
        self.x = random(tokens, padded(hidden), dtype=torch.float16)
        self.x[:, hidden:] = 0
        logits = random(tokens, NUM_EXPERTS)
        self.experts = logits.topk(TOP_K).indices  # of one row, the kernels choose in this order
        if tokens > 1:
            self.experts = self.experts.sort().values
        self.weights = torch.softmax(logits.gather(1, self.experts), -1)
        self.logits = logits
        lists = kernel_references.lists_reference(self.experts, NUM_EXPERTS)
        self.counts = torch.tensor([len(pairs) for pairs in lists], device=DEVICE).int()
        self.pairs = torch.zeros((NUM_EXPERTS, tokens), dtype=torch.int32, device=DEVICE)
        for expert, pairs in enumerate(lists):
            self.pairs[expert, : len(pairs)] = torch.tensor(pairs)
        active = [65536 * len(pairs) + e for e, pairs in enumerate(lists) if pairs]
        active += [-1] * (NUM_EXPERTS - len(active))
        self.active = torch.tensor(active, device=DEVICE).int()

    def expected_h(self) -> torch.Tensor:
        x = self.x[:, : self.hidden].double()
        return kernel_references.gate_up_reference(
            x, self.up_weight, self.up_bias, self.experts, alpha=1.702, limit=7.0
        )

    def expected(self, h: torch.Tensor) -> torch.Tensor:
        return kernel_references.down_reference(
            h.double(), self.down_weight, self.down_bias, self.experts, self.weights.double()
        )


@pytest.mark.parametrize(
    ("tokens", "step", "side", "groups", "stages", "hidden", "is_added"),
    [
        (1, 2, 1, 1, 2, HIDDEN, True),
        (1, 2, 1, 1, 2, HIDDEN, False),  # of a rank: the sum over all is added
        (3, 1, 2, 2, 0, HIDDEN, True),
        (11, 2, 1, 1, 0, HIDDEN, True),
        (11, 2, 1, 2, 2, HIDDEN, True),
        (3, 1, 2, 1, 0, 256, True),  # two supertiles
        pytest.param(2, 2, 1, 1, 2, 448, True, marks=pytest.mark.slow),  # three
    ],
)
def test_streamed_experts(
    tokens: int, step: int, side: int, groups: int, stages: int, hidden: int, is_added: bool
) -> None:
    case = Case(tokens, hidden)
    is_one = tokens == 1
    h = torch.full((tokens * TOP_K, PADDED), float("nan"), device=DEVICE).half()
    h[:, INNER:] = 0
    shared: dict[str, Any] = {
        "CAPACITY": tokens,
        "TOP_K": TOP_K,
        "IS_ONE_ROW": is_one,
        "E": NUM_EXPERTS,
        "BE": 4,
        "STEP": step,
        "STAGES": stages,
        "SIDE": side,
        "num_warps": step * side,
    }
    slots = TOP_K if is_one else NUM_EXPERTS
    launch(
        experts.gate_up_kernel,
        (INNER // 8 // groups // side, slots),
        case.x.view(torch.int32), *case.up, case.up_bias, case.active, case.pairs,
        case.logits, h,
        K=padded(hidden), INNER=INNER, X_WORDS=padded(hidden) // 2, H_STRIDE=PADDED,
        ALPHA=1.702, LIMIT=7.0,
        GROUPS=groups, **shared,
    )  # fmt: skip
    assert relative_error(h[:, :INNER], case.expected_h()) < 1e-3  # fp16's rounding
    outputs = torch.full((tokens * TOP_K, hidden), float("nan"), device=DEVICE)
    residual = random(tokens, hidden)
    before = residual.clone()
    launch(
        experts.down_kernel,
        (hidden // 16 // groups // side, slots),
        h.view(torch.int32), *case.down, case.down_bias, case.active, case.pairs,
        case.logits, outputs, residual,
        torch.zeros(hidden // 16, dtype=torch.int32, device=DEVICE), IS_ADDED=is_added,
        K=PADDED, HIDDEN=hidden, H_WORDS=PADDED // 2, GROUPS=groups, **shared,
    )  # fmt: skip
    change = residual - before if is_added else residual
    if not is_one:
        change = (outputs.view(tokens, TOP_K, hidden) * case.weights.unsqueeze(-1)).sum(1)
    assert relative_error(change, case.expected(h[:, :INNER])) < 1e-5


@pytest.mark.parametrize(
    ("tokens", "steps", "is_packed", "groups", "rows", "tail"),
    [
        (5, 1, True, 4, 16, 0),
        (40, 3, True, 8, 32, 16),
        (40, 1, False, 8, 32, 16),
        (40, 1, True, 8, 64, 16),
    ],
)
def test_grouped_experts(
    tokens: int, steps: int, is_packed: bool, groups: int, rows: int, tail: int
) -> None:
    """Tiles of 16 rows, or of more with smaller ones last; more groups of rows than there are."""
    case = Case(tokens)
    num_tiles = NUM_EXPERTS + tokens * TOP_K // rows
    tiles = torch.zeros(num_tiles, dtype=torch.int32, device=DEVICE)
    counts, pairs = torch.zeros_like(case.counts), torch.zeros_like(case.pairs)
    launch(
        router.list_kernel, (NUM_EXPERTS,), case.experts.int().contiguous(), tokens * TOP_K,
        counts, pairs, tiles, torch.zeros(1, dtype=torch.int32, device=DEVICE), E=NUM_EXPERTS,
        BE=4, BM=rows, NUM_TILES=num_tiles, CAPACITY=tokens, BLOCK=32,
    )  # fmt: skip
    assert torch.equal(counts, case.counts)
    for expert, count in enumerate(counts.tolist()):
        assert torch.equal(pairs[expert, :count], case.pairs[expert, :count])
    up, down = (weights_of(case, is_packed, is_gate_up) for is_gate_up in (True, False))
    places = fragment_order.inputs_by_place(PADDED).to(DEVICE)
    case.x = case.x.to(torch.bfloat16)
    h = torch.full((tokens * TOP_K, PADDED), float("nan"), device=DEVICE).bfloat16()
    h[:, INNER:] = 0
    shared: dict[str, Any] = {
        "BM": rows, "TAIL": tail, "STAGES": 1, "GROUPS": groups,
        "TILES": steps,
        "IS_PACKED": is_packed,
    }  # fmt: skip
    lists = (tiles, counts, pairs, tokens)
    launch(
        experts_grouped.gate_up_grouped_kernel, (-(-INNER // 8 // groups), num_tiles),
        case.x[:, places].contiguous(), *up, case.up_bias, *lists, h, K=PADDED, INNER=INNER,
        X_STRIDE=PADDED, H_STRIDE=PADDED, TOP_K=TOP_K, ALPHA=1.702, LIMIT=7.0, **shared,
    )  # fmt: skip
    found = h[:, places.argsort()]
    assert relative_error(found[:, :INNER], case.expected_h()) < 5e-3  # bf16's rounding
    outputs = torch.full((tokens * TOP_K, HIDDEN), float("nan"), device=DEVICE)
    launch(
        experts_grouped.down_grouped_kernel, (-(-HIDDEN // 16 // groups), num_tiles),
        h, *down, case.down_bias, *lists, outputs,
        K=PADDED, HIDDEN=HIDDEN, H_STRIDE=PADDED, **shared,
    )  # fmt: skip
    total = (outputs.view(tokens, TOP_K, HIDDEN) * case.weights.unsqueeze(-1)).sum(1)
    assert relative_error(total, case.expected(found[:, :INNER])) < 1e-5


def test_streamed_experts_are_listed_for_many_rows_too() -> None:
    """As one program lists those of few rows: with their rows, then -1."""
    case, tokens = Case(40), 40
    active = torch.zeros(NUM_EXPERTS + 2, dtype=torch.int32, device=DEVICE)
    chosen = case.experts.int().contiguous()
    chosen[chosen == 1] = -1  # this expert has no rows
    counts, pairs = torch.zeros_like(case.counts), torch.zeros_like(case.pairs)
    launch(
        router.list_kernel, (NUM_EXPERTS,), chosen, tokens * TOP_K, counts, pairs, active,
        torch.zeros(1, dtype=torch.int32, device=DEVICE), E=NUM_EXPERTS, BE=4, BM=0,
        NUM_TILES=len(active), CAPACITY=tokens, BLOCK=32,
    )  # fmt: skip
    numbers = case.counts.tolist()
    listed = [numbers[e] * 65536 + e for e in range(NUM_EXPERTS) if numbers[e] and e != 1]
    assert active.tolist() == [*listed, *[-1] * (len(active) - len(listed))]
    for expert in listed:
        count, number = divmod(expert, 65536)
        assert torch.equal(pairs[number, :count], case.pairs[number, :count])


def weights_of(case: Case, is_packed: bool, is_gate_up: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """As the grouped kernels take them: both hold the same numbers."""
    if is_packed:
        words, scales = case.up if is_gate_up else case.down
        return words.view(torch.int16), scales
    values = case.up_weight if is_gate_up else case.down_weight
    words = fragment_order.plain(values.to(torch.bfloat16), is_gate_up=is_gate_up)
    return words, torch.zeros(1, dtype=torch.int32, device=DEVICE)
