"""A runner whose logits depend on every K/V slot it reads, so that a wrong table shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
import torch

from engines.base import EngineRequest, SamplingParams
from engines.native.block_manager import NULL_BLOCK, BlockManager
from engines.native.core import EngineCore
from engines.native.logits import Logits
from engines.native.scheduler import Chunk, Limits, Scheduler
from engines.native.sequence import Sequence

VOCAB_SIZE = 50
BLOCK_SIZE = 4
WINDOW = 6
OUTER = ("priority", "tenant", "cache_salt", "stop_token_ids", "grammar", "request_id")


def kv_value(token_id: int, position: int, full: list[int], window: list[int]) -> int:
    """What stands for the K/V of one token: a hash of the token and all it attends to."""
    return hash((token_id, position, tuple(full), tuple(window)))


def logits_of(value: int) -> torch.Tensor:
    return torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(value & (2**63 - 1)))


@dataclass
class HashRunner:
    """Stands in for a model; keeps K/V values by (block, offset) as the real cache does."""

    num_blocks: int = 64
    block_size: int = BLOCK_SIZE
    window: int = WINDOW
    max_model_len: int = 200
    kv: dict[tuple[int, int], int] = field(default_factory=dict)
    steps: list[list[tuple[str, int]]] = field(default_factory=list)  # (request id, tokens)
    before_step: Callable[[Sequence_[Chunk]], None] = lambda chunks: None

    def execute(self, chunks: Sequence_[Chunk], /) -> Logits:
        assert chunks, "a step without work"
        self.steps.append([(c.sequence.request.request_id, c.num_tokens) for c in chunks])
        self.before_step(chunks)
        values = [self._compute(chunk) for chunk in chunks]
        last = [logits_of(v) for v, chunk in zip(values, chunks, strict=True) if chunk.is_last]
        return Logits(torch.stack(last) if last else torch.empty(0, VOCAB_SIZE))

    def _compute(self, chunk: Chunk) -> int:
        sequence, start = chunk.sequence, chunk.sequence.num_computed_tokens
        assert chunk.num_tokens > 0
        value = 0
        for position in range(start, start + chunk.num_tokens):
            first = max(0, position - self.window + 1)
            full = [self.kv[self._slot(sequence.full_blocks, p)] for p in range(position)]
            window = [
                self.kv[self._slot(sequence.window_blocks, p)] for p in range(first, position)
            ]
            value = kv_value(sequence.token_ids[position], position, full, window)
            self.kv[self._slot(sequence.full_blocks, position)] = value
            self.kv[self._slot(sequence.window_blocks, position)] = value + 1
        return value

    def _slot(self, table: list[int], position: int) -> tuple[int, int]:
        block = table[position // self.block_size]
        assert block != NULL_BLOCK, f"position {position} was given back and is still needed"
        return block, position % self.block_size


@pytest.fixture
def make_runner() -> Callable[..., HashRunner]:
    return HashRunner


@pytest.fixture
def make_core() -> Iterator[Callable[..., EngineCore]]:
    """make_core(**limits and runner fields); the blocks are checked when the test ends."""
    cores: list[EngineCore] = []

    def make(**options: Any) -> EngineCore:
        limits = {
            "max_model_len": options.get("max_model_len", 200),
            "max_num_seqs": options.pop("max_num_seqs", 8),
            "max_num_batched_tokens": options.pop("max_num_batched_tokens", 16),
            "max_num_waiting": options.pop("max_num_waiting", 100),
        }
        is_prefix_caching = options.pop("is_prefix_caching", True)
        runner = HashRunner(**options)
        blocks = BlockManager(
            runner.num_blocks, BLOCK_SIZE, WINDOW, is_prefix_caching=is_prefix_caching
        )
        cores.append(EngineCore(runner, Scheduler(blocks, Limits(**limits)), VOCAB_SIZE))
        return cores[-1]

    yield make
    for core in cores:
        core.scheduler.blocks.check_integrity()
        if not core.scheduler.has_work:
            assert core.stats().num_free_kv_blocks == core.stats().num_kv_blocks


@pytest.fixture
def make_request() -> Callable[..., EngineRequest]:
    """make_request(prompt, max_tokens, **sampling); greedy unless a temperature is given."""
    numbers = count()

    def make(prompt: Sequence_[int], max_tokens: int = 8, **options: Any) -> EngineRequest:
        outer = {key: options.pop(key) for key in OUTER if key in options}
        sampling = SamplingParams(max_tokens, **{"temperature": 0.0, **options})
        outer.setdefault("request_id", f"r{next(numbers)}")
        return EngineRequest(prompt_token_ids=tuple(prompt), sampling=sampling, **outer)

    return make


@pytest.fixture
def greedy_answer() -> Callable[[Sequence_[int], int], list[int]]:
    """The right tokens for a prompt, computed without blocks."""

    def answer(prompt: Sequence_[int], max_tokens: int) -> list[int]:
        token_ids: list[int] = list(prompt)
        values: list[int] = []
        while len(token_ids) < len(prompt) + max_tokens:
            for position in range(len(values), len(token_ids)):
                window = [v + 1 for v in values[max(0, position - WINDOW + 1) : position]]
                values.append(kv_value(token_ids[position], position, values, window))
            token_ids.append(int(logits_of(values[-1]).argmax()))
        return token_ids[len(prompt) :]

    return answer


@pytest.fixture
def run_all() -> Callable[..., dict[str, list[int]]]:
    """Step a core until it has no work; every request's new tokens by request id."""

    def run(core: EngineCore, max_steps: int = 3000) -> dict[str, list[int]]:
        answers: dict[str, list[int]] = {}
        for _ in range(max_steps):
            if not core.scheduler.has_work:
                core.scheduler.blocks.check_integrity()
                return answers
            for sequence, event in core.step():
                answers.setdefault(sequence.request.request_id, []).extend(event.token_ids)
            core.scheduler.blocks.check_integrity()
        raise AssertionError(f"still at work after {max_steps} steps")

    return run


@pytest.fixture
def make_sequence(
    make_request: Callable[..., EngineRequest],
) -> Callable[..., Sequence]:
    """make_sequence(prompt, generated, **sampling) as the sampler meets it."""

    def make(
        prompt: Sequence_[int] = (1,), generated: Sequence_[int] = (), **options: Any
    ) -> Sequence:
        sequence = Sequence(make_request(prompt, 100, **options), 1000)
        sequence.token_ids.extend(generated)
        return sequence

    return make
