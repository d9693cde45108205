"""What every route that takes a conversation or a prompt settles before it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from engines.base import EngineInfo, SamplingParams
from service.api.common.sampling import SamplingFields
from service.budget import Budget, OverBudget
from service.errors import RequestError
from service.harmony.errors import ToolTooLarge, UnknownToolCall
from service.harmony.render import render
from service.harmony.turns import in_thread
from service.harmony.types import Conversation, FreeText, Message, ReasoningEffort, Tool
from service.harmony.vocabulary import LONGEST_TOKEN_CHARS, STOP_TOKEN_IDS
from service.request.context import RequestContext
from service.runtime import Runtime

# gpt-oss knows three levels; the others of the published schemas mean the nearest of them.
EFFORTS: Mapping[str | None, ReasoningEffort] = {
    None: "medium",
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}

Ids = tuple[int, ...]

# Writing a longer prompt in this thread would hold up every stream of this process.
LONG_PROMPT_CHARS: Final = 16_384
_TURN_CHARS: Final = 64  # what a message costs beside its text, in characters
_VALUE_CHARS: Final = 4  # what a value of a schema costs beside its text
_FEW_STEPS: Final = 8_000  # of describing tools: a few milliseconds

MAX_COUNTED: Final = 262_144  # tokens of a prompt that nobody generates from
TURN_TOKENS: Final = 4  # at least: its start, its author, its beginning and its end


def check_model(model: str, runtime: Runtime, context: RequestContext) -> None:
    """Raise a 404 for a model that is not the served one, Forbidden for one not allowed."""
    if model != runtime.model.id:
        raise RequestError(
            f"The model {model!r} is not served here; use {runtime.model.id!r}.",
            param="model",
            code="model_not_found",
            status=404,
        )
    context.check_may_use(model)


def current_date(now_s: float) -> str:
    """UTC, so that all workers and replicas render the same prompt."""
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%d")


@dataclass(frozen=True, slots=True)
class PromptBound:
    """How long a prompt may be, and the field to shorten; none is written beyond it."""

    max_tokens: int
    param: str
    is_context: bool = True  # False: nothing is generated, the bound is that of the work

    def check(self, num_tokens: int) -> None:
        """Raise a RequestError when there are so many at least."""
        if num_tokens > self.max_tokens:
            raise self.error()

    def error(self) -> RequestError:
        """What is answered to a longer prompt."""
        most = "The context holds" if self.is_context else "This route takes"
        return RequestError(
            f"{most} {self.max_tokens} tokens, but {self.param} alone makes more of them; "
            f"shorten {self.param}.",
            param=self.param,
            code="context_length_exceeded",
        )


def context_bound(info: EngineInfo, param: str) -> PromptBound:
    """The bound of a prompt that the model shall read."""
    return PromptBound(info.max_model_len, param)


def counting_bound(param: str) -> PromptBound:
    """The bound of a prompt of which only the tokens are wanted: whatever the context holds."""
    return PromptBound(MAX_COUNTED, param, is_context=False)


async def render_prompt(
    conversation: Conversation, param_of: Callable[[int], str], bound: PromptBound
) -> tuple[int, ...]:
    """The prompt's ids; `param_of` names the field of a tool message that answers no call.

    Raises RequestError, for a prompt beyond the bound before all of it is written.
    """
    bound.check(_least_tokens(conversation))
    try:
        if _num_chars(conversation) <= LONG_PROMPT_CHARS:
            with suppress(ToolTooLarge):
                return tuple(render(conversation, _FEW_STEPS))
        return tuple(await written(bound, partial(render, conversation)))
    except UnknownToolCall as error:
        param = param_of(error.message_index)
        raise RequestError(
            f"{param} is {error.tool_call_id!r}, which no earlier assistant message called; "
            "send the assistant message with that call before its result.",
            param=param,
            code="unknown_tool_call",
        ) from error
    except ToolTooLarge as error:
        raise RequestError(
            f"tools: describing {error.name!r} to the model takes more than {error.limit} steps; "
            "shorten its description, or let its schema refer to itself less often.",
            param="tools",
            code="schema_too_complex",
        ) from error


async def written(bound: PromptBound, write: Callable[[], list[int]]) -> list[int]:
    """What `write` gives, without holding up the others; raises RequestError beyond the bound."""
    try:
        return await in_thread(write, Budget(bound.max_tokens, "tokens"))
    except OverBudget:
        raise bound.error() from None


def _least_tokens(conversation: Conversation) -> int:
    """Fewer it cannot be: what each user message needs, and how long a token's text can be."""
    messages = conversation.messages
    num_users = sum(message.role == "user" for message in messages)
    longest = max((len(m.content) for m in messages if m.role != "tool"), default=0)
    return max(TURN_TOKENS * num_users, longest // LONGEST_TOKEN_CHARS)


def _num_chars(conversation: Conversation) -> int:
    """All that clients make long, but tools' schemas: what those cost shows as they are written."""
    format = conversation.response_format
    return (
        sum(_num_tool_chars(tool) for tool in conversation.tools)
        + sum(_num_turn_chars(message) for message in conversation.messages)
        + (0 if format is None else len(format.description) + _num_schema_chars(format.schema))
    )


def _num_tool_chars(tool: Tool) -> int:
    text = tool.free_text or FreeText()
    return sum(len(part or "") for part in (tool.name, tool.description, text.pattern, text.lark))


def _num_schema_chars(schema: Any) -> int:
    """About how long it is as JSON; not counted to the end where it is long."""
    num_chars, waiting = 0, [schema]
    while waiting and num_chars <= LONG_PROMPT_CHARS:
        value = waiting.pop()
        num_chars += _VALUE_CHARS + (len(value) if isinstance(value, str) else 0)
        if isinstance(value, dict):
            num_chars += sum(map(len, value))
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return num_chars


def _num_turn_chars(message: Message) -> int:
    calls = sum(len(call.arguments) + _TURN_CHARS for call in message.tool_calls)
    return len(message.content) + len(message.reasoning) + calls + _TURN_CHARS


def answer_limit(
    asked: int | None, num_prompt: int, max_model_len: int, *, prompt_param: str, limit_param: str
) -> int:
    """The client's limit, or all the context that the prompt leaves; RequestError if it is none."""
    room = max_model_len - num_prompt
    if room >= 1 and (asked is None or asked <= room):
        return room if asked is None else asked
    wanted = f" and {asked} for the answer ({limit_param})" if asked else ""
    raise RequestError(
        f"The context holds {max_model_len} tokens, but {num_prompt} for the prompt{wanted} "
        f"were asked for; shorten {prompt_param} or ask for less.",
        param=prompt_param if room < 1 else limit_param,
        code="context_length_exceeded",
    )


def sampling_of(
    request: SamplingFields, max_tokens: int, info: EngineInfo, num_logprobs: int | None
) -> SamplingParams:
    """The request's sampling fields as the engines take them."""
    if (request.min_tokens or 0) > max_tokens:
        raise RequestError(
            f"min_tokens is {request.min_tokens}, more than the answer may have ({max_tokens}); "
            "lower it.",
            param="min_tokens",
        )
    given = request.model_dump(include=_PASSED_ON, exclude_none=True)
    return SamplingParams(
        max_tokens=max_tokens,
        top_k=max(request.top_k or 0, 0),
        logit_bias=_logit_bias(request.logit_bias or {}, info.vocab_size),
        logprobs=num_logprobs,
        **given,
    )


def stop_ids(request: SamplingFields, *, is_guided: bool = False, is_hosted: bool = False) -> Ids:
    """What ends an answer; raises RequestError where that is not for the client to change."""
    for name in ("min_tokens", "ignore_eos"):
        if getattr(request, name) and (is_guided or is_hosted):
            what = "a guided answer" if is_guided else "built-in tools"
            raise RequestError(
                f"{name} and {what} do not go together: it ends where it must; leave one out.",
                param=name,
            )
    return () if request.ignore_eos else STOP_TOKEN_IDS


_PASSED_ON = {
    "min_tokens",
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
}


def _logit_bias(biases: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    """Biases by token id; raises RequestError for a key that is no id of the vocabulary."""
    for key in biases:
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            raise RequestError(
                f"logit_bias has the key {key[:40]!r}; keys are token ids from 0 to "
                f"{vocab_size - 1} as strings.",
                param="logit_bias",
            )
    return {int(key): bias for key, bias in biases.items()}
