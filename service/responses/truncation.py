"""`truncation: auto`: the oldest messages leave until the rest fits the context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from service.api.prompt import render_prompt
from service.harmony.types import Conversation, Message

_INSTRUCTIONS = ("system", "developer")
_ANSWER_SHARE = 8  # an eighth of the context is kept for an answer without a limit of its own


async def shortened(
    conversation: Conversation, params: Sequence[str], max_model_len: int, asked: int | None
) -> tuple[int, ...]:
    """The prompt without its oldest messages, as few as may be.

    Instructions stay, and so does all from the last message of a user on. Raises
    RequestError where a tool message answers no call.
    """
    token_ids = await render_prompt(conversation, params.__getitem__)
    budget = max_model_len - (asked or max_model_len // _ANSWER_SHARE)
    fewest, most = 1, _num_droppable(conversation.messages)
    if len(token_ids) <= budget or not most:
        return token_ids
    while fewest < most:
        middle = (fewest + most) // 2
        if len(await _render(conversation, middle)) <= budget:
            most = middle
        else:
            fewest = middle + 1
    return await _render(conversation, fewest)


async def _render(conversation: Conversation, num_dropped: int) -> tuple[int, ...]:
    messages = _without_oldest(conversation.messages, num_dropped)
    return await render_prompt(replace(conversation, messages=messages), lambda _: "input")


def _num_droppable(messages: Sequence[Message]) -> int:
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    before = messages[: users[-1]] if users else ()
    return sum(message.role not in _INSTRUCTIONS for message in before)


def _without_oldest(messages: Sequence[Message], num_dropped: int) -> tuple[Message, ...]:
    """Results whose call has left must leave too."""
    kept: list[Message] = []
    call_ids: set[str | None] = set()
    for message in messages:
        if message.role not in _INSTRUCTIONS and num_dropped:
            num_dropped -= 1
        elif message.role != "tool" or message.tool_call_id in call_ids:
            kept.append(message)
            call_ids |= {call.id for call in message.tool_calls}
    return tuple(kept)
