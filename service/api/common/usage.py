"""Token counts of a generation as the API reports them."""

from __future__ import annotations

from dataclasses import dataclass

from service.answer.generation import Generation
from service.api.common.common import CompletionTokensDetails, PromptTokensDetails, Usage
from service.api.common.fields import StreamOptions


def usage_of(generation: Generation) -> Usage:
    """All choices together; every generated token counts, control tokens included."""
    num_prompt, num_completion = generation.num_prompt_tokens, generation.num_completion_tokens
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_completion,
        total_tokens=num_prompt + num_completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=generation.num_cached_tokens),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=generation.num_reasoning_tokens
        ),
    )


@dataclass(frozen=True, slots=True)
class StreamedUsage:
    """Where the chunks of a stream say how many tokens there were."""

    at_end: bool = False  # in a chunk of its own; the others say null
    always: bool = False  # in every chunk, as many as there are until then

    @classmethod
    def asked(cls, options: StreamOptions | None) -> StreamedUsage:
        """What the client's stream_options ask for."""
        if options is None:
            return cls()
        return cls(bool(options.include_usage), bool(options.continuous_usage_stats))

    def field(self, generation: Generation) -> bytes:
        """The last field of a chunk's object."""
        if self.always:
            return b',"usage":' + usage_of(generation).model_dump_json().encode()
        return b',"usage":null' if self.at_end else b""
