"""A prompt that one device computed is another's cached prompt, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engines.native.cuda.kernels.kernel_fixtures import DEVICE, IS_GPU, model_config

from tools.benchmarks.random_model import random_weights  # isort: skip
from engines.base import EngineRequest, SamplingParams  # isort: skip
from engines.native.loop.core import EngineCore  # isort: skip
from parts.dynamo.handover.ask import PrefillAsk  # isort: skip
from parts.dynamo.handover.exchange import access_of, copy_in  # isort: skip
from engines.native.loop.sequence import Sequence  # isort: skip
from tests.parts.dynamo.handover.pairs import source_of  # isort: skip
from tests.engines.native.cuda.engine_case import EngineCase, generate  # isort: skip

LONGEST = 1024 if IS_GPU else 64
LENGTH = 700 if IS_GPU else 34
NUM_TOKENS = 32 if IS_GPU else 1


def cases(num_stages: int) -> list[EngineCase]:
    """Two engines of one model; the second one keeps evicted blocks in host memory."""
    config = model_config(4 if IS_GPU else 2)
    weights = random_weights(config, LONGEST, DEVICE)
    return [
        EngineCase(
            config, weights, 200 if IS_GPU else 16, LONGEST, chunk=256 if IS_GPU else 16,
            max_num_seqs=2, num_stages=num_stages, num_host_blocks=num_host_blocks,
        )
        for num_host_blocks in (0, 400)
    ]  # fmt: skip


def hand_over(giving: EngineCore, taking: EngineCore, prompt: list[int]) -> int:
    """Have one compute the prompt, and copy its blocks after each step, two at a time; the number
    of steps that brought some."""
    request = EngineRequest("given", tuple(prompt), SamplingParams(1, temperature=0))
    sequence = Sequence(request, LONGEST)
    giving.scheduler.add(request)
    num_steps = 0
    with source_of(giving).serve(PrefillAsk(request, {})) as given:
        pieces = given.pieces(0.001)
        while giving.has_work:
            giving.step()
            before = num_steps
            while (piece := next(pieces, None)) is not None:
                keys, content = piece
                access = access_of(taking)
                received = access.room(len(content))
                received[:] = np.frombuffer(content, np.uint8)
                staged = access.staged(received.reshape(len(keys), -1))
                assert copy_in(taking, sequence, keys, staged)
                num_steps = before + 1
    return num_steps


@pytest.mark.parametrize(
    "num_stages", [1, 2] if IS_GPU else [pytest.param(2, marks=pytest.mark.slow)]
)
def test_a_prompt_is_found_where_it_was_handed_over(
    num_stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where what it evicts is saved, and then comes back."""
    one, other = cases(num_stages)
    giving, taking = one.core(), other.core()
    size = 2 * access_of(giving).block_bytes
    monkeypatch.setattr("parts.dynamo.handover.prefill_source.PIECE_BYTES", size)
    prompt, before = one.prompts(num_stages, [LENGTH, LENGTH])
    generate(taking, [before], NUM_TOKENS, temperature=0)
    of_before, _ = generate(taking, [before], NUM_TOKENS, temperature=0)
    assert hand_over(giving, taking, prompt) >= 2, "all came at the end"
    expected, [event, *_] = generate(giving, [prompt], NUM_TOKENS, temperature=0)
    assert event.num_cached_tokens > LENGTH / 2
    found, [event, *_] = generate(taking, [prompt], NUM_TOKENS, temperature=0)
    assert found == expected
    assert event.num_cached_tokens > LENGTH / 2
    assert generate(taking, [before], NUM_TOKENS, temperature=0)[0] == of_before
    for core in (giving, taking):
        core.scheduler.blocks.check_integrity()


def test_blocks_of_models_in_other_stages_are_of_another_layout() -> None:
    layouts = {access_of(case.core()).layout for number in (1, 2) for case in cases(number)}
    assert len(layouts) == 2
