"""A prompt that one device computed is another's cached prompt, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engines.native.cuda.kernels.kernel_fixtures import DEVICE, IS_GPU, model_config

from tools.benchmarks.random_model import random_weights  # isort: skip
from engines.base import EngineRequest, SamplingParams  # isort: skip
from engines.native.core import EngineCore  # isort: skip
from engines.native.kv_exchange import access_of, copy_in, copy_out, keys_to_give  # isort: skip
from engines.native.sequence import Sequence  # isort: skip
from tests.engines.native.cuda.engine_case import EngineCase, generate  # isort: skip

LONGEST = 1024 if IS_GPU else 64
LENGTH = 700 if IS_GPU else 18
NUM_TOKENS = 32 if IS_GPU else 1


def cases(num_stages: int) -> list[EngineCase]:
    """Two engines of one model; the second one keeps evicted blocks in host memory."""
    config = model_config(4 if IS_GPU else 2)
    weights = random_weights(config, LONGEST, DEVICE)
    return [
        EngineCase(
            config, weights, 200 if IS_GPU else 16, LONGEST, chunk=256 if IS_GPU else 8,
            max_num_seqs=2, num_stages=num_stages, num_host_blocks=num_host_blocks,
        )
        for num_host_blocks in (0, 400)
    ]  # fmt: skip


def hand_over(giving: EngineCore, taking: EngineCore, prompt: list[int]) -> int:
    """Two blocks at a time; the number of blocks."""
    sequence = Sequence(EngineRequest("given", tuple(prompt), SamplingParams(1)), LONGEST)
    keys = keys_to_give(giving, sequence, 0)
    for some in (keys[at : at + 2] for at in range(0, len(keys), 2)):
        content = copy_out(giving, some)
        assert content is not None
        received = np.frombuffer(bytearray(content().tobytes()), np.uint8).reshape(len(some), -1)
        assert copy_in(taking, sequence, some, access_of(taking).staged(received))
    return len(keys)


@pytest.mark.parametrize(
    "num_stages", [1, 2] if IS_GPU else [pytest.param(2, marks=pytest.mark.slow)]
)
def test_a_prompt_is_found_where_it_was_handed_over(num_stages: int) -> None:
    """Also where what it evicts is saved, and then comes back."""
    one, other = cases(num_stages)
    giving, taking = one.core(), other.core()
    prompt, before = one.prompts(num_stages, [LENGTH, LENGTH])
    generate(giving, [prompt], NUM_TOKENS, temperature=0)
    expected, [event, *_] = generate(giving, [prompt], NUM_TOKENS, temperature=0)
    assert event.num_cached_tokens > LENGTH / 2

    generate(taking, [before], NUM_TOKENS, temperature=0)
    of_before, _ = generate(taking, [before], NUM_TOKENS, temperature=0)
    assert hand_over(giving, taking, prompt) >= 2
    found, [event, *_] = generate(taking, [prompt], NUM_TOKENS, temperature=0)
    assert found == expected
    assert event.num_cached_tokens > LENGTH / 2
    assert generate(taking, [before], NUM_TOKENS, temperature=0)[0] == of_before
    for core in (giving, taking):
        core.scheduler.blocks.check_integrity()


def test_blocks_of_models_in_other_stages_are_of_another_layout() -> None:
    layouts = {access_of(case.core()).layout for number in (1, 2) for case in cases(number)}
    assert len(layouts) == 2
