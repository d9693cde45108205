"""What a request must look like before an engine takes it, and what an engine may lack."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

from engines.base import Capabilities, EngineRequest, SamplingParams
from engines.errors import InvalidGrammar, InvalidRequest, PromptTooLong
from engines.fields import FIELDS, SAMPLING_FIELDS, Field
from engines.grammar.tree import Gbnf, JsonSchema, Lark, Regex, Written, written_parts

_DIALECTS: Final = {JsonSchema: "json_schema", Regex: "regex", Lark: "lark", Gbnf: "gbnf"}


def check_request(request: EngineRequest, vocab_size: int, max_model_len: int) -> None:
    """Raise InvalidRequest or PromptTooLong, naming key and value, unless the request can run."""
    _check_prompt(request.prompt_token_ids, vocab_size, max_model_len)
    _check_token_ids("stop_token_ids", request.stop_token_ids, vocab_size)
    _check_sampling(request.sampling, vocab_size)
    _check_generated(request, vocab_size, max_model_len)


def _check_prompt(token_ids: tuple[int, ...], vocab_size: int, max_model_len: int) -> None:
    if not token_ids:
        raise InvalidRequest("prompt_token_ids is empty; give at least one token")
    if len(token_ids) >= max_model_len:
        raise PromptTooLong(
            f"the prompt has {len(token_ids)} tokens and the context length is {max_model_len}, "
            f"answer included; shorten the prompt to at most {max_model_len - 1}"
        )
    _check_token_ids("prompt_token_ids", token_ids, vocab_size)


def _check_generated(request: EngineRequest, vocab_size: int, max_model_len: int) -> None:
    """Check that the tokens of an earlier run leave room for one more."""
    token_ids = request.generated_token_ids
    room = min(request.sampling.max_tokens, max_model_len - len(request.prompt_token_ids))
    if len(token_ids) >= room:
        raise InvalidRequest(
            f"generated_token_ids has {len(token_ids)} tokens; the answer ends after {room}"
        )
    _check_token_ids("generated_token_ids", token_ids, vocab_size)


def _check_token_ids(key: str, token_ids: Collection[int], vocab_size: int) -> None:
    for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"{key} has {token_id}, which is outside the vocabulary of {vocab_size} tokens"
            )


def _check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    _check_bounds(sampling, SAMPLING_FIELDS, vocab_size)
    _check_token_ids("logit_bias", sampling.logit_bias, vocab_size)
    for token_id, bias in sampling.logit_bias.items():
        if not isfinite(bias):
            raise InvalidRequest(f"logit_bias[{token_id}] is {bias}; use a finite number")


def _check_bounds(values: object, rows: Sequence[Field], vocab_size: int, path: str = "") -> None:
    for row in rows:
        value = getattr(values, row.name)
        if value is not None and row.parts:
            _check_bounds(value, row.parts, vocab_size, f"{row.name}.")
        elif value is not None and (row.low is not None or row.above is not None):
            high, shown = row.high, str(row.high)
            if high == "vocab_size":
                high, shown = vocab_size, str(vocab_size)
            elif isinstance(high, str):
                high = getattr(values, high)
                shown = f"{shown} ({high})"
            if not row.holds(value, high):
                expected = row.expected.format(high=shown)
                raise InvalidRequest(f"{path}{row.name} is {value}; use {expected}")


@dataclass(frozen=True, slots=True)
class MissingCapability:
    """Something a request asks for that an engine lacks."""

    name: str  # of the capability
    value: str  # what is wished for, in short
    able: str = ""  # what the engine could do instead
    part: Written | None = None  # of the grammar, where it is about one


def first_missing(request: EngineRequest, capabilities: Capabilities) -> MissingCapability | None:
    """The first thing a request asks for that these capabilities lack; None if there is none."""
    if capabilities.lacks:
        for name, value in _wishes(request):
            if name in capabilities.lacks:
                return MissingCapability(name, value)
    most = capabilities.max_logprobs
    for name in ("logprobs", "prompt_logprobs"):
        num = getattr(request.sampling, name)
        if num is not None and most is not None and num > most:
            return MissingCapability(name, str(num), f"at most {most}")
    for part in written_parts(request.grammar) if request.grammar is not None else ():
        if (dialect := _DIALECTS[type(part)]) not in capabilities.dialects:
            return MissingCapability("dialects", dialect, " or ".join(capabilities.dialects), part)
    return None


def check_capabilities(request: EngineRequest, capabilities: Capabilities) -> None:
    """Raise InvalidRequest or InvalidGrammar naming the first thing the engine lacks."""
    lack = first_missing(request, capabilities)
    if lack is None:
        return
    error = InvalidGrammar if lack.name in ("grammar", "dialects") else InvalidRequest
    remedy = f"use {lack.able}, or leave it out" if lack.able else "leave it out"
    raise error(
        f"{lack.name} is {lack.value}, which the engine that serves this model does not support; "
        f"{remedy}"
    )


def _wishes(request: EngineRequest) -> Iterator[tuple[str, str]]:
    """The name and the value of all that a request asks for and that engines may lack."""
    if request.grammar is not None:
        yield "grammar", "given"
    for row in _OPTIONAL:
        value = getattr(request if row.holder == "request" else request.sampling, row.name)
        if value != row.default:
            yield row.name, _in_short(value)
    if request.generated_token_ids:
        yield "continuation", f"of {len(request.generated_token_ids)} tokens"
        if memory := _memory(request):
            yield "exact_continuation", f"under {memory}"


def _in_short(value: object) -> str:
    match value:
        case int() | float():
            return str(value)
        case Mapping():
            return f"given for {len(value)} tokens"
        case _:
            return "given"


def _memory(request: EngineRequest) -> str:
    """What a later token depends on beside the answer's tokens."""
    sampling = request.sampling
    if request.grammar is not None:
        return "a grammar"
    for row in SAMPLING_FIELDS:
        if row.memory and getattr(sampling, row.name) != row.default:
            return row.memory
    return "a seed" if sampling.seed is not None and sampling.temperature > 0 else ""


_OPTIONAL: Final = tuple(row for row in FIELDS if row.may_lack)
