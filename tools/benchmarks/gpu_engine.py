"""The engine with its scheduler and overlapped loop on this machine's GPU, for benchmarks.gpu."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engines.base import EngineRequest, SamplingParams, TokenEvent
from engines.native.assemble import assemble_core
from engines.native.backends.base import Capacity
from engines.native.backends.cuda.backend import CudaBackend
from engines.native.backends.cuda.passes.stages import ModelPart
from engines.native.backends.cuda.weights.model import ModelWeights
from engines.native.config import ModelConfig, NativeConfig
from engines.native.loop.core import EngineCore


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that are all there from the start, of which `streams` run beside each other."""

    streams: int
    prompt: int
    answer: int
    requests: int
    chunk: int = 2048  # tokens of a step, at most
    asked: Mapping[str, Any] = field(default_factory=dict)  # of SamplingParams, beside the length

    @property
    def longest(self) -> int:
        """Tokens of a sequence, with some to spare."""
        return self.prompt + self.answer + 64

    def num_blocks(self, block_size: int, window: int) -> int:
        """KV blocks that all streams need at their longest, and a chunk beside them."""
        held = -(-self.longest // block_size) + -(-window // block_size) + 2
        return held * self.streams + 2 * self.chunk // block_size + 1


@dataclass(slots=True)
class Served:
    """When each sequence's tokens came, in seconds since the start."""

    arrivals: dict[object, list[float]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def first_tokens(self) -> list[float]:
        """When each sequence's first token came, ascending."""
        return sorted(times[0] for times in self.arrivals.values())

    @property
    def seconds_per_token(self) -> float:
        """The median sequence's time of a token after the first."""
        each = sorted((t[-1] - t[0]) / (len(t) - 1) for t in self.arrivals.values())
        return each[len(each) // 2]


def serve(
    config: ModelConfig, weights: ModelWeights, cache: Tensor, block_size: int, load: Load
) -> dict[str, Any]:
    """Run the load to its end: answers at temperature 1, each with a seed of its own.

    `cache` (layers of a kind, num_blocks, values of a block). Rates are those of whole phases: of
    decoding, streams over the median time of a token; of prompts, until the last first token; of
    answers, from the start to the end.
    """
    return serve_on(core_of(config, weights, cache, block_size, load), config.vocab_size, load)


def serve_on(core: EngineCore, vocab_size: int, load: Load) -> dict[str, Any]:
    """Run the load to its end on a core that has nothing to do."""
    generator = torch.Generator().manual_seed(load.streams)
    for number in range(load.requests):
        size = (load.prompt,)
        ids = torch.randint(0, vocab_size - 1000, size, generator=generator).tolist()
        params = SamplingParams(load.answer, **{"temperature": 1.0, "seed": number, **load.asked})
        core.scheduler.add(EngineRequest(str(number), tuple(ids), params))
    served = _run(core)
    first = served.first_tokens
    found: dict[str, Any] = {
        "streams": load.streams,
        "requests": load.requests,
        "prompt": load.prompt,
        "answer": load.answer,
        "chunk": load.chunk,
        "seconds": round(served.seconds, 3),
        "first_token_ms": round(first[0] * 1e3, 2),
        "last_first_token_ms": round(first[-1] * 1e3, 2),
    }
    if load.requests > load.streams or load.answer == 1:
        found["prompt_tokens_per_s"] = round(load.requests * load.prompt / first[-1], 1)
        found["answer_tokens_per_s"] = round(load.requests * load.answer / served.seconds, 1)
    if load.answer > 1:
        found["tokens_per_s"] = round(load.streams / served.seconds_per_token, 1)
        found["ms_per_token"] = round(served.seconds_per_token * 1e3, 4)
    return found


def core_of(
    config: ModelConfig, weights: ModelWeights, cache: Tensor, block_size: int, load: Load
) -> EngineCore:
    """A core that has room for such a load."""
    capacity = Capacity(cache.shape[1], block_size, load.longest)
    parts = [ModelPart(config, weights, cache)]
    backend = CudaBackend(config, parts, capacity, load.streams, load.chunk)
    native = NativeConfig(
        Path(), dtype="bfloat16", max_num_seqs=load.streams, max_num_batched_tokens=load.chunk,
        overlap_steps=True, enable_prefix_caching=False,
    )  # fmt: skip
    return assemble_core(native, backend, config.sliding_window, config.vocab_size)


def _run(core: EngineCore) -> Served:
    served, start = Served(), time.perf_counter()
    while core.has_work:
        outcomes = core.step()
        now = time.perf_counter() - start
        for sequence, event in outcomes:
            assert isinstance(event, TokenEvent), event
            served.arrivals.setdefault(sequence, []).append(now)
    served.seconds = time.perf_counter() - start
    return served
