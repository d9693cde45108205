"""Chunks of prompts against the model in float64."""

import math

import pytest
import torch

from tests.engines.native.cuda.kernels.kernel_fixtures import (
    DEVICE,
    IS_GPU,
    model_config,
    relative_error,
)

from engines.native.backends.cuda.choices.of_card import CardChoices  # isort: skip
from engines.native.backends.cuda.steps.prefill import (  # isort: skip
    Prefill,
    PrefillBuffers,
)
from engines.native.backends.cuda.steps.token_runs import ON_DEVICE, TokenRun  # isort: skip
from tests.engines.native.cuda.reference import Outcome, forward_reference  # isort: skip
from tests.engines.native.cuda.steps.decode_case import DecodeCase  # isort: skip

TOLERANCE = (
    4e-2 if IS_GPU else 6e-2
)  # of the logits' norm: activations are bf16 between the products
# Between router logits; closer, either expert is right.
TIE = 2e-2

# Of a chunk's mean position, from which on its attention is another kernel's, if there is one.
DEPTHS = [math.inf, 0] if CardChoices.of(DEVICE).long_attention(model_config()) else [math.inf]
# Tokens cached before, and new ones, of each sequence of a chunk; the padded size, the
# block size.
CASES = (
    [
        ([0, 300], [130, 7], 256, 16),
        ([0, 1000, 2500], [1, 200, 40], 256, 64),
        ([0], [2000], 2048, 64),
        ([0, 0], [500, 12], 512, 32),
        ([0, 900, 63, 64, 127], [300, 1, 1, 1, 1], 512, 64),
        ([0], [1024], 1024, 64),
        ([0], [100], 128, 16),
        ([500, 0, 3000, 127], [700, 1300, 1, 40], 2048, 64),
        ([31_800], [200], 256, 64),
        ([0, 20_000, 513], [300, 1, 1], 512, 64),
    ]
    if IS_GPU
    else [([0, 70, 33], [3, 18, 1], 24, 64)]
)


def draw(case: DecodeCase, row: int, cached: int, num: int) -> tuple[torch.Tensor, Outcome]:
    """Random tokens and what they give; of ten draws the first in which no experts tie at the last
    token, or the tenth."""
    past = [(keys[:cached], values[:cached]) for keys, values in case.past(row)]
    for _ in range(10):
        ids = torch.randint(0, case.shape.config.vocab_size, (num,), device=DEVICE)
        outcome = forward_reference(case.shape, case.weights, ids, [*past])  # it appends
        if float(outcome.closest[-1]) >= TIE:
            break
    return ids, outcome


@pytest.mark.parametrize("least_depth", DEPTHS)
@pytest.mark.parametrize(("cached", "new", "size", "block"), CASES)
def test_the_last_token_of_each_chunk(
    cached: list[int], new: list[int], size: int, block: int, least_depth: float
) -> None:
    lengths = [past + count for past, count in zip(cached, new, strict=True)]
    case = DecodeCase(model_config(), lengths, block_size=block)
    slots = case.inputs.slots.tolist()
    drawn = [draw(case, row, cached[row], num) for row, num in enumerate(new)]
    tokens, outcomes = [ids for ids, _ in drawn], [outcome for _, outcome in drawn]
    buffers = PrefillBuffers(case.shape, size, len(new), DEVICE, least_depth)
    buffers.attended.fill_(float("nan"))
    buffers.q.fill_(float("nan"))
    host = buffers.packed.cpu()
    chunks = [TokenRun(slots[i], cached[i], tokens[i].tolist()) for i in range(len(new))]
    for i, (slot, ids) in enumerate(zip(slots, tokens, strict=True)):
        if len(ids) == 1:  # as a sequence that decodes has it: on the device alone
            case.slots.token_ids[slot] = ids[0]
            chunks[i] = chunks[i]._replace(token_ids=[ON_DEVICE])
    buffers.pack(chunks, host)
    buffers.packed.copy_(host)
    Prefill(
        case.shape, case.weights, case.cache, case.block_size, size, case.slots, buffers,
        CardChoices.of(DEVICE).prefill(size, case.shape.config),
    ).run()  # fmt: skip
    last = buffers.normed[buffers.last_rows.long(), : case.shape.hidden]
    logits = last.double() @ case.weights.head.double().T
    compared = 0
    for row, outcome in enumerate(outcomes):
        if float(outcome.closest[-1]) < TIE:
            continue
        error = relative_error(logits[row], outcome.logits[-1])
        # Of a short prompt one token whose fourth and fifth expert tie weighs more.
        tolerance = TOLERANCE if cached[row] + new[row] >= 200 else 6e-2
        assert error < tolerance, f"chunk {row}"
        compared += 1
    assert compared


def test_a_prompt_in_two_chunks() -> None:
    """Nothing is asked of the first one's states: it leaves the K/V of every layer all the same."""
    past, new = (700, 90) if IS_GPU else (21, 3)
    size, block = (1024, 64) if IS_GPU else (24, 64)
    case = DecodeCase(model_config(), [past + new], block_size=block)
    slot, config = int(case.inputs.slots[0]), case.shape.config
    ids = torch.randint(0, config.vocab_size, (past + new,), device=DEVICE)
    empty = torch.zeros(0, config.num_key_value_heads, config.head_dim, device=DEVICE)
    expected = forward_reference(
        case.shape, case.weights, ids, [(empty, empty) for _ in config.layer_types]
    )
    buffers = PrefillBuffers(case.shape, size, 1, DEVICE)
    prefill = Prefill(
        case.shape, case.weights, case.cache, case.block_size, size, case.slots, buffers,
        CardChoices.of(DEVICE).prefill(size, config),
    )  # fmt: skip
    runs = [
        TokenRun(slot, 0, ids[:past].tolist(), num_states=0),
        TokenRun(slot, past, ids[past:].tolist(), num_states=new),
    ]
    for run in runs:
        host = buffers.packed.cpu()
        buffers.pack([run], host)
        buffers.packed.copy_(host)
        prefill.run()
    logits = buffers.normed[:new, : case.shape.hidden].double() @ case.weights.head.double().T
    errors = (logits - expected.logits[past:]).norm(dim=1) / expected.logits[past:].norm(dim=1)
    # An expert that a token before chose the other way moves those after it a little.
    assert (errors[expected.closest[past:] >= TIE] < 6e-2).double().mean() > 0.85
