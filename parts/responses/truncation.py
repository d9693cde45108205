"""`truncation: auto`: the oldest messages leave until the rest fits the context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from engines.base import EngineInfo
from service.api.common.prompt import context_bound, render_prompt
from service.chat_format import ChatFormat
from service.conversation import INSTRUCTION_ROLES, Conversation, Message
from service.errors import RequestError

_ANSWER_SHARE = 8  # an eighth of the context is kept for an answer without a limit of its own
_MOST_SHARE = 2  # a limit is the most that is taken: no more than half is kept for it


async def shortened(
    format: ChatFormat,
    conversation: Conversation,
    params: Sequence[str],
    info: EngineInfo,
    asked: int | None,
) -> tuple[int, ...]:
    """The prompt of a conversation without its oldest messages, as few as may be.

    Instructions stay, and so does all from the last message of a user on. Raises RequestError where
    a tool message answers no call.
    """
    length = info.max_model_len
    room = length - min(asked or length // _ANSWER_SHARE, length // _MOST_SHARE)
    fewest, most = 1, _num_droppable(conversation.messages)
    token_ids = await _fitting(
        format, conversation, params.__getitem__, room if most else None, info
    )
    if token_ids is not None:
        return token_ids
    while fewest < most:
        middle = (fewest + most) // 2
        without = _without(conversation, middle)
        if await _fitting(format, without, _input, room, info) is not None:
            most = middle
        else:
            fewest = middle + 1
    bound = context_bound(info, "input")
    return await render_prompt(format, _without(conversation, fewest), _input, bound)


async def _fitting(
    format: ChatFormat,
    conversation: Conversation,
    param_of: Callable[[int], str],
    room: int | None,
    info: EngineInfo,
) -> tuple[int, ...] | None:
    """The prompt, or None when it has more tokens than the room."""
    bound = context_bound(info, "input")
    if room is None:
        return await render_prompt(format, conversation, param_of, bound)
    try:
        bound = replace(bound, max_tokens=room, counts_on=False)
        return await render_prompt(format, conversation, param_of, bound)
    except RequestError as error:
        if error.code != bound.error(room).code:
            raise
        return None


def _input(_: int) -> str:
    return "input"


def _without(conversation: Conversation, num_dropped: int) -> Conversation:
    messages = _without_oldest(conversation.messages, num_dropped)
    return replace(conversation, messages=messages)


def _num_droppable(messages: Sequence[Message]) -> int:
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    before = messages[: users[-1]] if users else ()
    return sum(message.role not in INSTRUCTION_ROLES for message in before)


def _without_oldest(messages: Sequence[Message], num_dropped: int) -> tuple[Message, ...]:
    """Drop the oldest messages, and results whose call was dropped."""
    kept: list[Message] = []
    call_ids: set[str | None] = set()
    for message in messages:
        if message.role not in INSTRUCTION_ROLES and num_dropped:
            num_dropped -= 1
        elif message.role != "tool" or message.tool_call_id in call_ids:
            kept.append(message)
            call_ids |= {call.id for call in message.tool_calls}
    return tuple(kept)
