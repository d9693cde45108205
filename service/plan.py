"""What to generate, decided before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engines.base import EngineRequest, SamplingParams
from service.harmony.vocabulary import STOP_TOKEN_IDS


@dataclass(frozen=True, slots=True)
class Plan:
    """One API request in terms of tokens, whatever route it came by."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    tool_names: frozenset[str] = frozenset()
    stop: tuple[str, ...] = ()  # strings that end the visible text
    num_choices: int = 1
    max_calls: int | None = None  # the answer ends before one call more
    has_reasoning: bool = True  # whether the client is shown the chain of thought

    def engine_request(self, index: int) -> EngineRequest:
        """Choice `index` as the engine sees it; seeded choices differ from one another."""
        sampling = self.sampling
        if index and sampling.seed is not None:
            sampling = replace(sampling, seed=(sampling.seed + index) % (1 << 63))
        return EngineRequest(
            request_id=self.request_id if self.num_choices == 1 else f"{self.request_id}-{index}",
            prompt_token_ids=self.prompt_token_ids,
            sampling=sampling,
            stop_token_ids=STOP_TOKEN_IDS,
        )
