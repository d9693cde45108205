"""What an engine cannot do is refused before it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from engines.base import Capabilities, EngineRequest
from engines.errors import InvalidGrammar, InvalidRequest
from engines.grammar.tree import Gbnf, JsonSchema, Lark, Regex, Written, written_parts

_DIALECTS: Final = {JsonSchema: "json_schema", Regex: "regex", Lark: "lark", Gbnf: "gbnf"}


@dataclass(frozen=True, slots=True)
class Lack:
    """A wish that an engine cannot fulfil."""

    name: str  # of the capability
    value: str  # what is wished for, in short
    able: str = ""  # what the engine could do instead
    part: Written | None = None  # of the grammar, where it is about one


def first_lack(request: EngineRequest, capabilities: Capabilities) -> Lack | None:
    """The first wish of a request that an engine with these capabilities cannot fulfil."""
    for name, value in _wishes(request):
        if not getattr(capabilities, name):
            return Lack(name, value)
    num_logprobs, most = request.sampling.logprobs, capabilities.max_logprobs
    if num_logprobs is not None and most is not None and num_logprobs > most:
        return Lack("logprobs", str(num_logprobs), f"at most {most}")
    for part in written_parts(request.grammar) if request.grammar is not None else ():
        if (dialect := _DIALECTS[type(part)]) not in capabilities.dialects:
            return Lack("dialects", dialect, " or ".join(capabilities.dialects), part)
    return None


def check_capabilities(request: EngineRequest, capabilities: Capabilities) -> None:
    """Raise InvalidRequest naming the first wish that the engine cannot fulfil."""
    lack = first_lack(request, capabilities)
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
    sampling = request.sampling
    if request.grammar is not None:
        yield "grammar", "given"
    if sampling.seed is not None:
        yield "seed", str(sampling.seed)
    for name, default in _DEFAULTS.items():
        if (value := getattr(sampling, name)) != default:
            yield name, str(value)
    if sampling.logit_bias:
        yield "logit_bias", f"given for {len(sampling.logit_bias)} tokens"
    if request.priority != 0:
        yield "priority", str(request.priority)
    if request.cache_salt is not None:
        yield "cache_salt", "given"
    if request.generated_token_ids:
        yield "continuation", f"of {len(request.generated_token_ids)} tokens"


_DEFAULTS: Final = {
    "top_k": 0,
    "min_p": 0.0,
    "min_tokens": 0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
