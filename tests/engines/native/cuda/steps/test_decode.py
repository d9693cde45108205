"""A whole decode step against the model in float64."""

import pytest
import torch

from engines.native.backends.cuda.kernels.launch import KernelLaunch, each_once, instead
from tests.engines.native.cuda.kernels.kernel_fixtures import (
    DEVICE,
    IS_GPU,
    ON_GPU_ONLY,
    model_config,
    relative_error,
)

from tests.engines.native.cuda.steps.decode_case import DecodeCase  # isort: skip

# Of the logits' norm: bf16 attention, fp16 activations of the experts. In the small model of the
# CPU little averages out; what is wrong is off by some tenths.
TOLERANCE = 6e-3 if IS_GPU else 5e-2
TIE = 1e-2  # between router logits; closer, either expert is right

ROWS = [1, 7, 32, 100, 200, 380, 900] if IS_GPU else [1, 2]
LONG = [(1, 32_000), (3, 32_000)] if IS_GPU else []


@pytest.mark.parametrize(
    ("rows", "longest"), [*((rows, 3000 if IS_GPU else 40) for rows in ROWS), *LONG]
)
def test_logits_are_those_of_the_model(rows: int, longest: int) -> None:
    """A model with all looked-at rows at a tie tells nothing: then the next is looked at."""
    assert any(num_compared(rows, longest, seed) for seed in range(rows, rows + 5))


def num_compared(
    rows: int, longest: int, seed: int, tolerance: float = TOLERANCE, *, is_fp8: bool = False
) -> int:
    """How many rows of one random model are far from a tie; those are compared."""
    torch.manual_seed(seed)
    lengths = [int(n) for n in torch.randint(1, longest, (rows,))]
    lengths[0] = longest
    size = 64 if rows % 2 else 16
    case = DecodeCase(model_config(), lengths, size, seed, is_fp8=is_fp8)
    checked = range(rows) if rows < 10 else range(0, rows, rows // 8)
    expected = [case.expected(row) for row in checked]
    case.sampler.logits.fill_(float("nan"))
    case.step().run()
    compared = 0
    for row, outcome in zip(checked, expected, strict=True):
        if float(outcome.closest) < TIE:
            continue
        error = relative_error(case.sampler.logits[row], outcome.logits[0])
        assert error < tolerance, f"row {row}, context {lengths[row]}"
        compared += 1
    return compared


@pytest.mark.parametrize("rows", [1, 2])
def test_logits_with_keys_and_values_in_8_bits(rows: int) -> None:
    """The token's own K/V lose bits too, which the reference does not see."""
    longest = 3000 if IS_GPU else 40
    assert any(num_compared(rows, longest, s, 5e-2, is_fp8=True) for s in range(rows, rows + 5))


@ON_GPU_ONLY
@pytest.mark.parametrize("rows", ROWS[:2])
def test_a_step_gives_the_same_bits_again(rows: int) -> None:
    case = DecodeCase(model_config(), [30] * rows, block_size=16)
    tokens, positions = case.slots.token_ids.clone(), case.inputs.positions.clone()
    case.step().run()
    first = case.sampler.logits.clone()
    for _ in range(20 if IS_GPU else 1):
        case.slots.token_ids.copy_(tokens)
        case.inputs.positions.copy_(positions)
        case.step().run()
        assert torch.equal(case.sampler.logits, first)


@ON_GPU_ONLY
def test_the_step_feeds_its_token_back() -> None:
    case = DecodeCase(model_config(), [5], block_size=16)
    case.step().run()
    case.sampler.run(1)
    assert case.slots.token_ids.tolist() == [int(case.sampler.logits[0].argmax())]
    assert case.inputs.positions.tolist() == [6]
    assert case.inputs.generated.tolist() == [1]


@ON_GPU_ONLY
def test_a_captured_step_gives_the_bits_of_the_launched_one() -> None:
    case = DecodeCase(model_config(), [200] * 8, block_size=16)
    step = case.step()
    tokens = case.slots.token_ids.clone()
    step.run()
    launched = case.sampler.logits.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    case.slots.token_ids.copy_(tokens)
    case.inputs.positions.fill_(200)
    graph.replay()
    torch.cuda.synchronize(DEVICE)
    assert torch.equal(case.sampler.logits, launched)


def test_each_kernel_of_a_step_can_be_started_just_once() -> None:
    """As a start does before it captures a step, so that Triton has loaded all of its kernels."""
    case = DecodeCase(model_config(), [5, 9], block_size=16)
    every: list[KernelLaunch] = []
    once: list[KernelLaunch] = []
    with instead(every.append):
        case.step().run()
    with instead(once.append), each_once():
        case.step().run()
    codes = [launch.machine_code for launch in once]
    assert len(codes) < len(every)
    assert sorted(codes, key=repr) == sorted({one.machine_code for one in every}, key=repr)
