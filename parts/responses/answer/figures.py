"""llama.cpp's figures in the events of a stream: its speed, and that the prompt has been read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from service.answer.generation import Generation
from service.api.common.metrics import timings_of


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """What the events of one stream have beside the response, as far as it was asked for."""

    generation: Generation
    shows_timings: bool
    shows_progress: bool

    @property
    def waits(self) -> bool:
        """Whether there will be something to say of the prompt, and is nothing yet."""
        return self.shows_progress and not self.generation.first_event_at

    def timings(self) -> dict[str, Any]:
        if not self.shows_timings or not self.generation.first_event_at:
            return {}
        return {"timings": timings_of(self.generation)}

    def progress(self) -> dict[str, Any]:
        """The whole prompt: engines tell nothing before it is read."""
        if not self.shows_progress or not self.generation.first_event_at:
            return {}
        num_tokens, timings = self.generation.num_prompt_tokens, timings_of(self.generation)
        progress = {
            "total": num_tokens,
            "cache": timings["cache_n"],
            "processed": num_tokens,
            "time_ms": timings["prompt_ms"],
        }
        return {"prompt_progress": progress}
