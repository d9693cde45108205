"""What OpenAI's routes report of a generation beside its text: token counts, log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import msgspec

from engines.base import TokenLogprob
from engines.prompt_logprobs import PromptLogprobs, PromptToken, unpacked
from service.answer.choice import Choice
from service.answer.generation import Generation
from service.answer.logprobs import KeptLogprobs
from service.api.common.metrics import metrics_bytes
from service.api.common.schema import (
    CompletionTokensDetails,
    PromptTokensDetails,
    StreamOptions,
    Usage,
)
from service.chat_format import ChatFormat
from service.conversation import Delta
from service.errors import RequestError

_FLOOR = -9999.0  # JSON has no minus infinity; OpenAI documents this value for it

_encode = msgspec.json.encode


def usage_of(generation: Generation) -> Usage:
    """The usage of all choices together; every generated token counts, control tokens included."""
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
    """Which chunks of a stream say how many tokens there were."""

    at_end: bool = False  # in a chunk of its own; the others say null
    always: bool = False  # in every chunk, as many as there are until then

    @classmethod
    def asked(cls, options: StreamOptions | None) -> StreamedUsage:
        if options is None:
            return cls()
        return cls(bool(options.include_usage), bool(options.continuous_usage_stats))

    def field(self, generation: Generation) -> bytes:
        """The usage as the last field of a chunk's object."""
        if self.always:
            return b',"usage":' + usage_of(generation).model_dump_json().encode()
        return b',"usage":null' if self.at_end else b""

    def finish(self, generation: Generation) -> bytes:
        """What the chunk that finishes a choice has, too: the times, unless another is last."""
        return b"" if self.at_end else metrics_bytes(generation)

    def last(self, generation: Generation) -> bytes:
        """The fields of the chunk behind all others."""
        usage = usage_of(generation).model_dump_json().encode()
        return b',"usage":' + usage + metrics_bytes(generation)


def entries(
    delta: Delta, logprobs: Sequence[TokenLogprob], format: ChatFormat
) -> list[msgspec.Raw]:
    """One entry for each token that the delta's text came from, as JSON.

    Written when they come: at the end, 4,000 tokens with 20 rivals each would hold up the event
    loop for half a second.
    """
    num_unknown = logprobs.num_unknown if isinstance(logprobs, KeptLogprobs) else 0
    spelt = _spelt_in(format)
    return [_entry(logprobs[at], spelt) for at in delta.positions if at >= num_unknown]


def token_entries(choice: Choice, start: int, end: int) -> list[msgspec.Raw]:
    """The extension's entries of the tokens from `start` on; null for those the client gave."""
    logprobs, format = choice.logprobs, choice.format
    return [
        msgspec.Raw(
            _encode(_token_entry(logprobs[at], format) if at >= logprobs.num_unknown else None)
        )
        for at in range(start, end)
    ]


def _token_entry(chosen: TokenLogprob, format: ChatFormat) -> dict[str, Any]:
    top = [_named(token_id, logprob, format) for token_id, logprob in chosen.top]
    return {**_named(chosen.token_id, chosen.logprob, format), "top_logprobs": top}


def _named(token_id: int, logprob: float, format: ChatFormat) -> dict[str, Any]:
    """With its id, which the text does not tell; control tokens by their names."""
    text = format.decode_marked([token_id])
    return {"id": token_id, "token": text, "logprob": clamped(logprob)}


def clamped(logprob: float) -> float:
    """A log-probability as JSON can hold it: no minus infinity."""
    return max(logprob, _FLOOR)


def _entry(chosen: TokenLogprob, spelt: _Spelt) -> msgspec.Raw:
    top = b"},".join([_token(token_id, logprob, spelt) for token_id, logprob in chosen.top])
    end = b"}]}" if top else b"]}"
    own = _token(chosen.token_id, chosen.logprob, spelt)
    return msgspec.Raw(b'%b,"top_logprobs":[%b%b' % (own, top, end))


def _token(token_id: int, logprob: float, spelt: _Spelt) -> bytes:
    """The JSON of a token and its log-probability, without the last brace."""
    before, after = spelt(token_id)
    return before + _encode(clamped(logprob)) + after


_Spelt = Callable[[int], tuple[bytes, bytes]]


@cache
def _spelt_in(format: ChatFormat) -> _Spelt:
    """What of a token's JSON is before its log-probability, and what is behind."""

    @lru_cache(maxsize=1 << 16)  # 25 MB at most; a model's likeliest tokens are few
    def spelt(token_id: int) -> tuple[bytes, bytes]:
        raw = format.decode_bytes(token_id)
        text = _encode(raw.decode("utf-8", "replace"))
        return b'{"token":' + text + b',"logprob":', b',"bytes":' + _encode([*raw])

    return spelt


# Of one request: two values for each token of a context of 131,072 tokens. An answer of as many
# is about 20 MB of JSON.
_MAX_VALUES: Final = 262_144

_Places = list[dict[str, dict[str, Any]] | None]


def check_prompt_logprobs(num_tokens: int, num_top: int | None, param: str) -> None:
    """Raise RequestError for more log-probabilities than one answer may have; `num_tokens`: of all
    its prompts, each as often as it is answered."""
    if num_top is None:
        return
    num_values = num_tokens * (1 + num_top)
    if num_values > _MAX_VALUES:
        raise RequestError(
            f"{param} asks for {num_values} log-probabilities of prompts; at most {_MAX_VALUES} "
            "are given at once. Ask for fewer likely tokens, or send several requests.",
            param=param,
        )


def prompt_logprobs_not_streamed(param: str) -> RequestError:
    """The error of a stream that asks for them, as vLLM has it."""
    return RequestError(
        "Log-probabilities of the prompt are not streamed; leave out stream.",
        param=param,
        code="unsupported_value",
    )


def shown_prompt(
    packed: Sequence[PromptLogprobs],
    prompt_token_ids: Sequence[int],
    num_top: int,
    format: ChatFormat,
) -> msgspec.Raw:
    """JSON in vLLM's shape: null for the first token, then for each the token and the likeliest."""
    name_of = cache(lambda token_id: format.decode_marked([token_id]))
    places: _Places = [None]
    places += [_place(token, num_top, name_of) for token in unpacked(packed, prompt_token_ids)]
    return msgspec.Raw(msgspec.json.encode(places))


def _place(
    token: PromptToken, num_top: int, name_of: Callable[[int], str]
) -> dict[str, dict[str, Any]]:
    ranked = [(token.token_id, token.logprob, token.rank)]
    ranked += [
        (id, logprob, rank)
        for rank, (id, logprob) in enumerate(token.top[:num_top], 1)
        if id != token.token_id
    ]
    return {
        str(id): {"logprob": clamped(logprob), "rank": rank, "decoded_token": name_of(id)}
        for id, logprob, rank in ranked
    }
