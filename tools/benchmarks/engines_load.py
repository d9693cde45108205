"""What every engine is asked in a comparison, and how its answers are timed."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, replace
from typing import Final

from engines.base import Engine, EngineRequest, SamplingParams

LIMITS: Final = {"max_model_len": 4096, "max_num_seqs": 32, "max_num_batched_tokens": 2048}


@dataclass(frozen=True, slots=True)
class Reading:
    """One run of a load."""

    rate: float  # tokens a second
    cpu_s: float = 0.0  # of the engine's processes


@dataclass(frozen=True, slots=True)
class Load:
    """So many streams at once, each with so many tokens in and out; of one token out, a prefill."""

    num_streams: int
    num_prompt: int
    num_tokens: int
    temperature: float = 0.0

    @property
    def is_prefill(self) -> bool:
        """Whether the prompt is what is timed."""
        return self.num_tokens == 1

    def shortened(self) -> Load:
        """The same widths with few tokens out, to warm up."""
        return replace(self, num_tokens=min(self.num_tokens, 4))

    async def run(self, engine: Engine, seed: int) -> Reading:
        """Tokens a second of all streams, from the first token on; of a prefill, its prompts'."""
        draw = random.Random(f"{seed} {self.num_streams} {self.num_prompt}")
        first_s: list[float] = []

        async def read(number: int, request: EngineRequest) -> None:
            num_read = 0
            async for event in engine.generate(request):
                if not num_read:
                    first_s.append(time.monotonic())
                num_read += len(event.token_ids)
            assert num_read == self.num_tokens, f"{num_read} of {self.num_tokens} tokens"

        requests = [self._request(draw, number) for number in range(self.num_streams)]
        began_s = time.monotonic()
        await asyncio.gather(*(read(i, request) for i, request in enumerate(requests)))
        ended_s = time.monotonic()
        if self.is_prefill:
            return Reading(self.num_streams * self.num_prompt / (ended_s - began_s))
        return Reading(self.num_streams * (self.num_tokens - 1) / (ended_s - min(first_s)))

    def _request(self, draw: random.Random, number: int) -> EngineRequest:
        prompt = tuple(draw.randrange(1000, 20_000) for _ in range(self.num_prompt))
        sampling = SamplingParams(self.num_tokens, temperature=self.temperature)
        return EngineRequest(f"{time.monotonic_ns()}-{number}", prompt, sampling)


WARM_UP: Final = Load(4, 64, 8)
LOADS: Final = {
    "1 stream": Load(1, 64, 128),
    "32 streams": Load(32, 64, 32),
    "32 streams, sampled": Load(32, 64, 32, temperature=1.0),
    "1 prompt of 2,048": Load(1, 2048, 1),
}
