"""Rows that a grammar binds, and whose masks are late, beside steady ones on the CUDA backend."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.native.cuda.kernels.kernel_fixtures import DEVICE, ON_GPU_ONLY

from engines.base import EngineRequest, SamplingParams, TokenEvent  # isort: skip
from engines.native.backends.cuda.offline.published import gpt_oss  # isort: skip
from tools.benchmarks.random_model import random_weights  # isort: skip
from tests.engines.native.cuda.engine_case import MARGIN, EngineCase  # isort: skip

pytestmark = ON_GPU_ONLY

NUM_PLAIN, NUM_BOUND = 20, 11  # more than are masked in one copy
NUM_TOKENS = 24
LATE_AT = NUM_TOKENS // 2


class EveryThird:
    """A grammar: the token's number leaves the same rest as its place."""

    def __init__(self, vocab_size: int) -> None:
        self.taken: list[int] = []
        self._tokens = np.arange(vocab_size)

    def fill(self, mask: Any) -> None:
        bits = np.zeros(32 * len(mask), np.uint8)
        bits[: len(self._tokens)] = self._tokens % 3 == len(self.taken) % 3
        mask.view(np.uint8)[:] = np.packbits(bits, bitorder="little")

    def accept(self, token_id: int) -> None:
        assert token_id % 3 == len(self.taken) % 3
        self.taken.append(token_id)


class Gated(EveryThird):
    """Its mask in the middle is not made until `gate` is open."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self.gate = threading.Event()

    def fill(self, mask: Any) -> None:
        if len(self.taken) == LATE_AT:
            self.gate.wait()
        super().fill(mask)


@pytest.fixture(scope="module")
def case() -> EngineCase:
    config, longest = gpt_oss("20b", 2), 256
    weights = random_weights(config, longest, DEVICE)
    num = NUM_PLAIN + NUM_BOUND
    return EngineCase(config, weights, 8 * num, longest, max_num_seqs=num, chunk=256)


@pytest.mark.parametrize("guide", [EveryThird, Gated])
def test_bound_rows_take_the_best_that_they_may_and_plain_ones_the_best(
    case: EngineCase, guide: type[EveryThird]
) -> None:
    core, size = case.core(), case.config.vocab_size
    core.puts_off = guide is Gated  # else each waits, and all go in step
    prompts = case.prompts(8, [3 + i for i in range(NUM_PLAIN + NUM_BOUND)])
    greedy = SamplingParams(NUM_TOKENS, temperature=0.0)
    guides = [guide(size) for _ in range(NUM_BOUND)]
    sequences = []
    for i, prompt in enumerate(prompts):
        bound: Any = guides[i - NUM_PLAIN] if i >= NUM_PLAIN else None
        request = EngineRequest(str(i), tuple(prompt), greedy)
        sequences.append(core.scheduler.add(request, bound))
    late = [each for each in guides if isinstance(each, Gated)]
    while core.has_work:
        assert all(isinstance(event, TokenEvent) for _, event in core.step())
        if late and all(each.is_ended for each in sequences[:NUM_PLAIN]):
            assert max(len(each.taken) for each in late) <= LATE_AT
            while late:
                late.pop().gate.set()
    assert core.stats().num_free_kv_blocks == core.stats().num_kv_blocks
    answers = [each.token_ids[each.num_prompt_tokens :] for each in sequences]
    assert [len(answer) for answer in answers] == [NUM_TOKENS] * len(sequences)
    assert [each.taken for each in guides] == answers[NUM_PLAIN:]
    bound_rest = torch.arange(NUM_TOKENS, device=DEVICE)[:, None] % 3
    allowed = torch.arange(size, device=DEVICE) % 3 == bound_rest
    for number in (0, NUM_PLAIN - 1, NUM_PLAIN, len(prompts) - 1):
        prompt, answer = prompts[number], answers[number]
        found = case.log_probabilities(prompt + answer[:-1])[len(prompt) - 1 :]
        if number >= NUM_PLAIN:
            found = found.masked_fill(~allowed, -torch.inf)
        chosen = found.gather(1, torch.tensor(answer, device=DEVICE)[:, None]).squeeze(1)
        assert float((found.amax(1) - chosen < MARGIN).double().mean()) >= 0.8
