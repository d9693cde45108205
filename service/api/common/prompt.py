"""Conversations as prompts: which model, what effort, how long, and written without a pause for
others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from engines.base import EngineInfo
from service.chat_format import ChatFormat
from service.conversation import (
    Conversation,
    FreeText,
    Message,
    Tool,
    ToolTooLarge,
    UnknownToolCall,
)
from service.errors import RequestError
from service.request import RequestContext
from service.runtime import Runtime
from service.work import Budget, OverBudget, in_loop, in_thread

# Writing a longer prompt in this thread would hold up every stream of this process.
LONG_PROMPT_CHARS: Final = 16_384
_TURN_CHARS: Final = 64  # what a message costs beside its text, in characters
_VALUE_CHARS: Final = 4  # what a value of a schema costs beside its text
_FEW_STEPS: Final = 8_000  # of describing tools: a few milliseconds

MAX_COUNTED: Final = 262_144  # tokens of a prompt without generation
TURN_TOKENS: Final = 4  # at least: its start, its author, its beginning and its end


def runtime_for(model: str | None, runtime: Runtime, context: RequestContext) -> Runtime:
    """The runtime for requests to a model or adapter; without a name, the served model's.

    Raises a 404 for what is not served, Forbidden for what the caller may not use.
    """
    if not model or model in runtime.model.names:
        context.check_may_use(runtime.model.names)
        return runtime
    found = None if runtime.adapters is None else runtime.adapters.get(model)
    if found is None:
        raise RequestError(
            f"The model {model[:128]!r} is not served here; use {runtime.model.id!r}.",
            param="model",
            code="model_not_found",
            status=404,
        )
    context.check_may_use((found.name,))
    return runtime.with_adapter(found)


def current_date(now_s: float) -> str:
    """The date in UTC, so that all workers and replicas render the same prompt."""
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%d")


TooLong = Callable[[str, int], str]  # from the prompt's number of tokens and the most there may be


@dataclass(frozen=True, slots=True)
class PromptBound:
    """How long a prompt may be, and how a longer one is refused.

    Clients recognise an overflow by the words of the API that they were written for, and some read
    the numbers to see how much they must leave out: so a prompt is counted on beyond its bound.
    """

    max_tokens: int
    param: str
    words: TooLong | None = None  # how another API than OpenAI's says it
    context: int | None = None  # None: nothing is generated, the bound is that of the work
    num_tools: int = 0  # that are described in the prompt, too
    counts_on: bool = True  # False: only whether it fits is wanted

    @property
    def max_counted(self) -> int:
        """How many tokens of a prompt are counted, so that its error can tell their number."""
        return max(self.max_tokens, MAX_COUNTED) if self.counts_on else self.max_tokens

    def check(self, num_tokens: int) -> None:
        """Raise a RequestError for a prompt of `num_tokens` tokens if that is too many."""
        if num_tokens > self.max_tokens:
            raise self.error(num_tokens)

    def check_least(self, num_tokens: int) -> None:
        """Raise a RequestError for a prompt of at least `num_tokens` if it cannot be counted."""
        if num_tokens > self.max_counted:
            raise self.error(num_tokens, is_least=True)

    def error(self, num_tokens: int, *, is_least: bool = False) -> RequestError:
        number = f"at least {num_tokens}" if is_least else str(num_tokens)
        return RequestError(
            self._words(number, num_tokens), param=self.param, code="context_length_exceeded"
        )

    def _words(self, number: str, num_tokens: int) -> str:
        if self.context is None:
            return f"This route takes {self.max_tokens} tokens; {self.param} has {number}."
        if self.words is not None:
            return self.words(
                number, self.context if num_tokens > self.context else self.max_tokens
            )
        tools = f" and the {self.num_tools} tools" if self.num_tools else ""
        room = "" if num_tokens > self.context else ", which leaves none for the answer"
        return (
            f"This model's maximum context length is {self.context} tokens. However, your "
            f"{self.param}{tools} resulted in {number} tokens{room}. Please reduce the length of "
            f"the {self.param}{' or tools' if tools else ''} (context_length_exceeded)."
        )


def context_bound(info: EngineInfo, param: str, words: TooLong | None = None) -> PromptBound:
    """The bound of a prompt that the model shall read, and answer with one token at least."""
    return PromptBound(info.max_model_len - 1, param, words, context=info.max_model_len)


def counting_bound(param: str) -> PromptBound:
    """The bound of a prompt of which only the tokens are wanted: whatever the context holds."""
    return PromptBound(MAX_COUNTED, param)


async def render_prompt(
    format: ChatFormat,
    conversation: Conversation,
    param_of: Callable[[int], str],
    bound: PromptBound,
) -> tuple[int, ...]:
    """The ids of a conversation's prompt; raises RequestError.

    `param_of` names the field of a tool message that answers no call. A prompt far beyond the bound
    is refused before all of it is written.
    """
    bound = replace(bound, num_tools=len(conversation.tools))
    bound.check_least(_least_tokens(format, conversation))
    try:
        token_ids = None
        if _num_chars(conversation) <= LONG_PROMPT_CHARS:
            with suppress(ToolTooLarge):
                token_ids = await in_loop(partial(format.prompt_of, conversation, _FEW_STEPS))
        if token_ids is None:
            token_ids = await counted(bound, partial(format.prompt_of, conversation))
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
    bound.check(len(token_ids))
    return tuple(token_ids)


async def counted(bound: PromptBound, write: Callable[[], list[int]]) -> list[int]:
    """The ids that `write` gives, made without holding up others; raises RequestError for more than
    are counted."""
    try:
        return await in_thread(write, Budget(bound.max_counted, "tokens"))
    except OverBudget as over:
        raise bound.error(over.limit + 1, is_least=True) from None


def _least_tokens(format: ChatFormat, conversation: Conversation) -> int:
    """Fewer it cannot be: what each user message needs, and how long a token's text can be."""
    messages = conversation.messages
    num_users = sum(message.role == "user" for message in messages)
    longest = max((len(m.content) for m in messages if m.role != "tool"), default=0)
    return max(TURN_TOKENS * num_users, longest // format.longest_token_chars)


def _num_chars(conversation: Conversation) -> int:
    """Characters of all client texts except tools' schemas, whose cost is counted while writing;
    counting stops once it is long."""
    format = conversation.response_format
    num_chars = sum(_num_tool_chars(tool) for tool in conversation.tools)
    num_chars += 0 if format is None else len(format.description) + _num_schema_chars(format.schema)
    for message in conversation.messages:
        if num_chars > LONG_PROMPT_CHARS:
            break
        num_chars += _num_turn_chars(message)
    return num_chars


def _num_tool_chars(tool: Tool) -> int:
    text = tool.free_text or FreeText()
    return sum(len(part or "") for part in (tool.name, tool.description, text.pattern, text.lark))


def _num_schema_chars(schema: Any) -> int:
    """Approximate length as JSON; counting stops once it is long."""
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
