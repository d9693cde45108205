"""From what a request asks for to the Plan that is run, the same for every family of routes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from auth.base import Scope
from engines.base import EngineInfo, SamplingParams
from engines.grammar.tree import Grammar
from engines.validation import MissingCapability, first_missing
from service.answer.plan import NO_OFFERED_TOOLS, Hosted, OfferedTools, Output, Plan
from service.answer.tiers import Tier, tier_of
from service.api.common.answer import check_prompt_logprobs
from service.api.common.guidance_schema import (
    JSONObjectFormat,
    JSONSchemaFormat,
    ResponseFormat,
    StructuralTagFormat,
    StructuredOutputs,
)
from service.api.common.schema import SamplingFields
from service.chat_format import ChatFormat
from service.conversation import Tool
from service.errors import RequestError
from service.guide.answer import (
    AUTO,
    CHAT_FIELDS,
    TEXT,
    AnswerFormat,
    FieldNames,
    ToolChoice,
    answer_grammar,
    read_in_turns,
    text_grammar,
)
from service.guide.widening import Widening
from service.request import RequestContext
from service.runtime import Runtime
from service.work import Budget

Ids = tuple[int, ...]

NOT_ENFORCED = "X-Harmonium-Not-Enforced"  # the keywords of schemas that are not, by place


@dataclass(frozen=True, slots=True)
class Guidance:
    """What the answer must be, and how the route calls the fields that say so."""

    choice: ToolChoice = AUTO
    format: AnswerFormat = TEXT
    fields: FieldNames = CHAT_FIELDS
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
    keeps_logprobs: bool = False
    begun_ids: Ids = ()
    output: Output = "chat"
    tool_types: Mapping[str, str] | None = None  # see Plan


def format_of(
    response_format: ResponseFormat | None, outputs: StructuredOutputs | None
) -> tuple[AnswerFormat, FieldNames]:
    """The answer's format and the field that sets it; raises RequestError if two do."""
    if outputs is None:
        return _text_format(response_format), CHAT_FIELDS
    if response_format is not None and response_format.type != "text":
        raise RequestError(
            "response_format and structured_outputs cannot be combined; send one of them.",
            param="structured_outputs",
        )
    format, field = _structured(outputs)
    place = f"structured_outputs.{field}"
    return format, replace(CHAT_FIELDS, format=place, schema=place)


def _text_format(format: ResponseFormat | None) -> AnswerFormat:
    match format:
        case JSONObjectFormat():
            return AnswerFormat("json_object")
        case JSONSchemaFormat():
            given = format.json_schema
            return AnswerFormat("json_schema", given.schema_, widens=not given.strict)
        case StructuralTagFormat():
            return AnswerFormat("structural_tag", format.format)
        case _:
            return TEXT


def _structured(outputs: StructuredOutputs) -> tuple[AnswerFormat, str]:
    if outputs.json_ is not None:
        return AnswerFormat("json_schema", outputs.json_), "json"
    if outputs.regex is not None:
        return AnswerFormat("regex", outputs.regex), "regex"
    if outputs.choice is not None:
        return AnswerFormat("choice", tuple(outputs.choice)), "choice"
    if outputs.grammar is not None:
        return AnswerFormat("grammar", outputs.grammar), "grammar"
    if outputs.structural_tag is not None:
        return AnswerFormat("structural_tag", outputs.structural_tag.format), "structural_tag"
    return AnswerFormat("json_object"), "json_object"


async def plan_of(
    spec: AnswerSpec, prompts: Sequence[Ids], runtime: Runtime, context: RequestContext
) -> Plan:
    """The plan of a request in the families' shared terms; raises RequestError naming a field at
    fault."""
    check_prompt_logprobs(
        spec.num_choices * sum(map(len, prompts)),
        spec.num_prompt_logprobs,
        spec.prompt_logprobs_param,
    )
    info = runtime.engine.info
    format = runtime.format
    grammar, hosted = await _grammars(spec, format, context)
    if spec.begun_ids:
        _check_begun(spec.begun_ids, prompts[0], info, format, is_hosted=hosted is not None)
    tier, priority = _urgency(spec.sampling, runtime.gate.most_urgent(context))
    plan = Plan(
        context=context,
        format=format,
        prompt_token_ids=prompts[0],
        more_prompts=tuple(prompts[1:]),
        max_model_len=info.max_model_len,
        sampling=_sampling_of(spec, prompts, info, runtime.model.temperature),
        stop_token_ids=_stop_ids(
            spec.sampling,
            info.vocab_size,
            format.stop_token_ids,
            is_guided=grammar is not None,
            is_hosted=hosted is not None,
        ),
        cache_salt=spec.sampling.cache_salt,
        adapter=runtime.model.adapter,
        priority=priority,
        tier=tier,
        names_tier=spec.sampling.service_tier is not None,
        tool_names=frozenset(tool.name for tool in spec.tools),
        custom_names=frozenset(tool.name for tool in spec.tools if tool.free_text is not None),
        tool_types=spec.tool_types,
        builtins=spec.offered.builtins,
        hosted=hosted,
        grammar=grammar,
        grammar_param=_grammar_param(spec.guidance) if grammar is not None else None,
        stop=(spec.stop,) if isinstance(spec.stop, str) else tuple(spec.stop or ()),
        shows_stop=bool(spec.sampling.include_stop_str_in_output),
        num_choices=spec.num_choices,
        max_calls=spec.max_calls,
        has_reasoning=spec.has_reasoning,
        keeps_ids=spec.keeps_ids,
        keeps_logprobs=spec.keeps_logprobs,
        begun_ids=spec.begun_ids,
        output=spec.output,
    )
    if (lack := first_missing(plan.engine_request(0), info.capabilities)) is not None:
        raise _refusal(lack, spec, plan)
    return plan.for_job() if context.is_detached else plan


def _urgency(fields: SamplingFields, most_urgent: int) -> tuple[Tier, int]:
    """The tier and the priority of a request whose caller may be so urgent."""
    tier, priority = tier_of(fields.service_tier, most_urgent), fields.priority
    if priority is None:
        return tier, tier.priority
    if tier is not Tier.DEFAULT:
        message = f"priority and service_tier {tier} cannot be combined; send one of them."
        raise RequestError(message, param="priority")
    if priority < most_urgent:
        raise RequestError(
            f"priority is {priority}; the most urgent value allowed here is {most_urgent} "
            f"(NIM_MIN_PRIORITY), but for keys with the scope {Scope.PRIORITY}.",
            param="priority",
            code="invalid_value",
        )
    return tier, priority


def _refusal(lack: MissingCapability, spec: AnswerSpec, plan: Plan) -> RequestError:
    """The error for an unsupported feature, with the field that asks for it."""
    engine = "the engine that serves this model"
    if lack.name == "cache_salt" and not plan.cache_salt:  # it follows from the caller's key
        return RequestError(
            f"This key belongs to a tenant, and {engine} cannot separate the prefix caches of "
            f"tenants; ask the operator for a key without a tenant, or for another engine.",
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
    elif lack.name in ("continuation", "exact_continuation"):
        param = "continue_token_ids"
    fault = {
        "grammar": f"{param} needs structured outputs, which {engine} does not support",
        "dialects": f"{param} is written as {lack.value}; {engine} follows {lack.able or 'none'}",
        "logprobs": f"{param} is {lack.value}; {engine} gives {lack.able}",
        "prompt_logprobs": (
            f"{param} asks for log-probabilities of the prompt, of which {engine} gives "
            f"{lack.able or 'none'}"
        ),
    }.get(lack.name, f"{param} is {lack.value}; {engine} does not support it")
    remedy = "change it" if lack.able else "leave it out"
    return RequestError(f"{fault}; {remedy}.", param=param, code="not_supported")


async def _grammars(
    spec: AnswerSpec, format: ChatFormat, context: RequestContext
) -> tuple[Grammar | None, Hosted | None]:
    """What the answer must be, and how built-in tools are run beside it; what of a schema is not
    enforced goes into a header and the log."""
    param = "tools" if spec.tools else spec.guidance.fields.schema
    grammar, hosted, widening = await read_in_turns(functools.partial(_read, spec, format), param)
    if widening.keywords:
        context.notes.headers[NOT_ENFORCED] = widening.text
        context.notes.not_enforced = widening.keywords
    return grammar, hosted


def _read(
    spec: AnswerSpec, format: ChatFormat, budget: Budget
) -> tuple[Grammar | None, Hosted | None, Widening]:
    guidance, widening = spec.guidance, Widening()
    if spec.output != "chat":
        return text_grammar(guidance.format, guidance.fields, budget, widening), None, widening
    grammar_of = functools.partial(
        answer_grammar,
        format,
        spec.tools,
        format=guidance.format,
        max_reasoning_tokens=guidance.max_reasoning_tokens,
        builtins=spec.offered.tools,
        fields=guidance.fields,
        budget=budget,
        widening=widening,
    )
    hosted = spec.offered.hosted(guidance.choice, grammar_of, is_shown=spec.shows_calls)
    return grammar_of(guidance.choice), hosted, widening


def _grammar_param(guidance: Guidance) -> str:
    return "tools" if guidance.format.kind == "text" else guidance.fields.format


def _sampling_of(
    spec: AnswerSpec, prompts: Sequence[Ids], info: EngineInfo, temperature: float
) -> SamplingParams:
    """The request's sampling fields as the engines take them.

    A limit is the most that the client takes: the context may leave less.
    """
    fields = spec.sampling
    asked = info.max_model_len if spec.max_tokens is None else spec.max_tokens + len(spec.begun_ids)
    least, most = (
        min(asked, info.max_model_len - num)
        for num in (max(map(len, prompts)), min(map(len, prompts)))
    )
    if (fields.min_tokens or 0) > least:
        raise RequestError(
            f"min_tokens is {fields.min_tokens}, more than the answer may have ({least}); "
            "lower it.",
            param="min_tokens",
        )
    return SamplingParams(
        max_tokens=most,
        logit_bias=_logit_bias(fields.logit_bias or {}, info.vocab_size),
        logprobs=spec.num_logprobs,
        prompt_logprobs=spec.num_prompt_logprobs,
        **{"temperature": temperature, **fields.passed_on()},
    )


def _check_begun(
    ids: Ids, prompt: Ids, info: EngineInfo, format: ChatFormat, *, is_hosted: bool
) -> None:
    """Raise RequestError if an answer cannot continue after what the client gave of it."""
    param = "continue_token_ids"
    room = info.max_model_len - len(prompt)
    if is_hosted:
        message = f"{param} and the server's built-in tools cannot be combined; remove one."
    elif len(ids) >= room:
        message = (
            f"{param} has {len(ids)} tokens; the prompt leaves room for {room - 1}; shorten it."
        )
    elif not 0 <= min(ids) <= max(ids) < info.vocab_size:
        message = f"{param} has an id outside the vocabulary of {info.vocab_size} tokens."
    elif not set(format.stop_token_ids).isdisjoint(ids):
        message = f"{param} has a token that ends the answer; send only the tokens before it."
    else:
        return
    raise RequestError(message, param=param)


def _stop_ids(
    fields: SamplingFields, vocab_size: int, of_format: Ids, *, is_guided: bool, is_hosted: bool
) -> Ids:
    """The stop ids of an answer; raises RequestError if the client may not change them."""
    asked = fields.stop_token_ids or ()
    if any(not 0 <= id < vocab_size for id in asked):
        raise RequestError(
            f"stop_token_ids has an id outside the vocabulary of {vocab_size} tokens.",
            param="stop_token_ids",
        )
    further = set(asked).difference(of_format)
    changes = {
        "min_tokens": fields.min_tokens,
        "ignore_eos": fields.ignore_eos,
        "stop_token_ids": further,
    }
    for name, is_given in changes.items():
        if is_given and (is_guided or is_hosted):
            what = "a guided answer" if is_guided else "built-in tools"
            raise RequestError(
                f"{name} and {what} cannot be combined: the grammar decides where the answer "
                f"ends; leave one out.",
                param=name,
            )
    usual = () if fields.ignore_eos else of_format
    return (*usual, *sorted(set(asked).difference(usual)))


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
