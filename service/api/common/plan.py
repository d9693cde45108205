"""From what a request asks for to the Plan that is run, the same for every family of routes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engines.base import EngineInfo, SamplingParams
from engines.grammar.tree import Grammar
from engines.validation import MissingCapability, first_missing
from service.answer.plan import NO_OFFERED_TOOLS, Hosted, OfferedTools, Output, Plan
from service.api.common.prompt_logprobs import check_budget
from service.api.common.schema import SamplingFields
from service.errors import RequestError
from service.guide.answer import (
    AUTO,
    CHAT_FIELDS,
    TEXT,
    AnswerFormat,
    Fields,
    ToolChoice,
    answer_grammar,
    read_in_turns,
    text_grammar,
)
from service.harmony.types import Tool
from service.harmony.vocabulary import STOP_TOKEN_IDS
from service.request import RequestContext
from service.work import Budget

Ids = tuple[int, ...]

_PASSED_ON: Final = {
    "min_tokens",
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
}


@dataclass(frozen=True, slots=True)
class Guidance:
    """What the answer must be, and how the route calls the fields that say so."""

    choice: ToolChoice = AUTO
    format: AnswerFormat = TEXT
    fields: Fields = CHAT_FIELDS
    max_reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerSpec:
    """What a request asks for beside its prompts, in the terms that all families share."""

    sampling: SamplingFields
    max_tokens: int | None  # of each answer, at most; None: all that the context leaves
    guidance: Guidance = Guidance()
    tools: tuple[Tool, ...] = ()  # that the client runs
    offered: OfferedTools = NO_OFFERED_TOOLS  # that this server runs
    shows_calls: bool = False  # whether the answer has items for the calls of those
    stop: str | Sequence[str] | None = None
    num_choices: int = 1
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    prompt_logprobs_param: str = "prompt_logprobs"
    logprobs_param: str = "top_logprobs"
    max_calls: int | None = None
    has_reasoning: bool = True
    keeps_ids: bool = False
    output: Output = "harmony"


async def plan_of(
    spec: AnswerSpec, prompts: Sequence[Ids], info: EngineInfo, context: RequestContext
) -> Plan:
    """The plan of a request in the families' shared terms; raises RequestError naming a field at
    fault."""
    check_budget(
        spec.num_choices * sum(map(len, prompts)),
        spec.num_prompt_logprobs,
        spec.prompt_logprobs_param,
    )
    grammar, hosted = await _grammars(spec)
    plan = Plan(
        context=context,
        prompt_token_ids=prompts[0],
        more_prompts=tuple(prompts[1:]),
        max_model_len=info.max_model_len,
        sampling=_sampling_of(spec, prompts, info),
        stop_token_ids=_stop_ids(
            spec.sampling, is_guided=grammar is not None, is_hosted=hosted is not None
        ),
        priority=spec.sampling.priority or 0,
        tool_names=frozenset(tool.name for tool in spec.tools),
        custom_names=frozenset(tool.name for tool in spec.tools if tool.free_text is not None),
        builtins=spec.offered.builtins,
        hosted=hosted,
        grammar=grammar,
        grammar_param=_grammar_param(spec.guidance) if grammar is not None else None,
        stop=(spec.stop,) if isinstance(spec.stop, str) else tuple(spec.stop or ()),
        num_choices=spec.num_choices,
        max_calls=spec.max_calls,
        has_reasoning=spec.has_reasoning,
        keeps_ids=spec.keeps_ids,
        output=spec.output,
    )
    if (lack := first_missing(plan.engine_request(0), info.capabilities)) is not None:
        raise _refusal(lack, spec, plan)
    return plan


def _refusal(lack: MissingCapability, spec: AnswerSpec, plan: Plan) -> RequestError:
    """What the engine cannot do, under the name of the field that asks for it."""
    engine = "the engine that serves this model"
    if lack.name == "cache_salt":  # no field: it follows from the caller's key
        return RequestError(
            f"This key belongs to a tenant, and {engine} cannot keep the cached prompts of "
            "tenants apart; ask the operator for a key without a tenant, or for another engine.",
            code="not_supported",
            status=501,
            type="server_error",
        )
    param: str | None = lack.name
    if lack.name == "logprobs":
        param = spec.logprobs_param
    elif lack.name == "prompt_logprobs":
        param = spec.prompt_logprobs_param
    elif lack.part is not None and lack.part.label:
        param = lack.part.label
    elif lack.name in ("grammar", "dialects"):
        param = plan.grammar_param
    told = {
        "grammar": f"{param} asks for a guided answer, which {engine} cannot give",
        "dialects": f"{param} is written as {lack.value}; {engine} follows {lack.able or 'none'}",
        "logprobs": f"{param} is {lack.value}; {engine} gives {lack.able}",
        "prompt_logprobs": (
            f"{param} asks for log-probabilities of the prompt, of which {engine} gives "
            f"{lack.able or 'none'}"
        ),
    }.get(lack.name, f"{param} is {lack.value}; {engine} does not support it")
    remedy = "change it" if lack.able else "leave it out"
    return RequestError(f"{told}; {remedy}.", param=param, code="not_supported")


async def _grammars(spec: AnswerSpec) -> tuple[Grammar | None, Hosted | None]:
    """What the answer must be, and how built-in tools are run beside it."""
    param = "tools" if spec.tools else spec.guidance.fields.schema
    return await read_in_turns(functools.partial(_read, spec), param)


def _read(spec: AnswerSpec, budget: Budget) -> tuple[Grammar | None, Hosted | None]:
    guidance = spec.guidance
    if spec.output != "harmony":
        return text_grammar(guidance.format, guidance.fields, budget), None
    grammar_of = functools.partial(
        answer_grammar,
        spec.tools,
        format=guidance.format,
        max_reasoning_tokens=guidance.max_reasoning_tokens,
        builtins=spec.offered.recipients,
        fields=guidance.fields,
        budget=budget,
    )
    hosted = spec.offered.hosted(guidance.choice, grammar_of, is_shown=spec.shows_calls)
    return grammar_of(guidance.choice), hosted


def _grammar_param(guidance: Guidance) -> str:
    return "tools" if guidance.format.kind == "text" else guidance.fields.format


def _sampling_of(spec: AnswerSpec, prompts: Sequence[Ids], info: EngineInfo) -> SamplingParams:
    """The request's sampling fields as the engines take them.

    A limit is the most that the client takes: what the context does not leave is not generated.
    """
    fields = spec.sampling
    rooms = [info.max_model_len - len(prompt) for prompt in prompts]
    least, most = (_at_most(spec.max_tokens, room) for room in (min(rooms), max(rooms)))
    if (fields.min_tokens or 0) > least:
        raise RequestError(
            f"min_tokens is {fields.min_tokens}, more than the answer may have ({least}); "
            "lower it.",
            param="min_tokens",
        )
    given = fields.model_dump(include=_PASSED_ON, exclude_none=True)
    return SamplingParams(
        max_tokens=most,
        # -1 stands for all tokens in other servers, 0 in the engines.
        top_k=max(fields.top_k or 0, 0),
        logit_bias=_logit_bias(fields.logit_bias or {}, info.vocab_size),
        logprobs=spec.num_logprobs,
        prompt_logprobs=spec.num_prompt_logprobs,
        **given,
    )


def _at_most(asked: int | None, room: int) -> int:
    return room if asked is None else min(asked, room)


def _stop_ids(fields: SamplingFields, *, is_guided: bool, is_hosted: bool) -> Ids:
    """What ends an answer; raises RequestError where that is not for the client to change."""
    for name in ("min_tokens", "ignore_eos"):
        if getattr(fields, name) and (is_guided or is_hosted):
            what = "a guided answer" if is_guided else "built-in tools"
            raise RequestError(
                f"{name} and {what} do not go together: it ends where it must; leave one out.",
                param=name,
            )
    return () if fields.ignore_eos else STOP_TOKEN_IDS


def _logit_bias(biases: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    """Biases by token id; raises RequestError for a key that is no id of the vocabulary."""
    for key in biases:
        # The length first: int() takes quadratic time for a long text.
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            raise RequestError(
                f"logit_bias has the key {key[:40]!r}; keys are token ids from 0 to "
                f"{vocab_size - 1} as strings.",
                param="logit_bias",
            )
    return {int(key): bias for key, bias in biases.items()}
