"""A history with compacted parts: what the model reads instead of them.

A compaction item holds a summary, and the turn that was not answered when it was made: a question,
or a running tool loop. It replaces all that is before it, except instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from parts.responses.items import HistoryItem
from parts.responses.past import Groups
from parts.responses.tools import items as tools
from service.compaction import Compactor, no_compaction, summary_message
from service.conversation import INSTRUCTION_ROLES
from service.request import RequestContext

Json = dict[str, Any]

ITEM: Final = "compaction"
TRIGGER: Final = "compaction_trigger"

_MOST_TAIL_BYTES: Final = 128 << 10  # a longer tool loop is summarized, too
_CALLS: Final = {"function_call", "custom_tool_call", *tools.CALLS}
_OUTPUTS: Final = {"function_call_output", "custom_tool_call_output", *tools.OUTPUTS}


class Compacted(msgspec.Struct, frozen=True):
    """What is sealed in a compaction item."""

    summary: str
    tail: list[Json]  # items of the turn that was not answered


_read = msgspec.json.Decoder(Compacted).decode


async def opened(groups: Groups, compactor: Compactor | None, context: RequestContext) -> Groups:
    """The history from its last compaction on; raises RequestError for one that is not ours."""
    groups = [[entry for entry in group if entry.item["type"] != TRIGGER] for group in groups]
    entries = [entry for group in groups for entry in group]
    found = [index for index, entry in enumerate(entries) if entry.item["type"] == ITEM]
    if not found:
        return groups
    place = found[-1]
    entry = entries[place]
    if compactor is None:
        raise no_compaction(entry.param)
    param = f"{entry.param}.encrypted_content"
    compacted = _read(await compactor.open(entry.item["encrypted_content"], context, param))
    kept = [each for each in entries[:place] if _is_instruction(each.item)]
    return [
        [*kept, HistoryItem(_message(compacted.summary), entry.param)],
        [HistoryItem(item, entry.param) for item in compacted.tail],
        *_after(groups, place),
    ]


def _after(groups: Groups, place: int) -> Groups:
    """What follows the entry of this number, in its groups."""
    rest: Groups = []
    for group in groups:
        if place < 0:
            rest.append(group)
        elif place < len(group):
            rest.append(group[place + 1 :])
        place -= len(group)
    return rest


def divided(groups: Groups) -> tuple[Groups, list[HistoryItem]]:
    """The history, and apart from it the turn that is not answered: the last messages of the user,
    or the last calls with their outputs and the thoughts before them."""
    entries = [entry for group in groups for entry in group]
    at = len(entries)
    while at and entries[at - 1].item["type"] in _OUTPUTS:
        at -= 1
    is_unanswered = _is_question if at == len(entries) else _is_of_loop
    while at and is_unanswered(entries[at - 1].item):
        at -= 1
    tail = entries[at:]
    if len(msgspec.json.encode([entry.item for entry in tail])) > _MOST_TAIL_BYTES:
        return groups, []
    return _before(groups, at), tail


def is_empty(groups: Groups) -> bool:
    """Whether there is nothing to summarize."""
    return all(_is_instruction(entry.item) for group in groups for entry in group)


def _before(groups: Groups, place: int) -> Groups:
    kept: Groups = []
    for group in groups:
        kept.append(group[: max(place, 0)])
        place -= len(group)
    return kept


def _is_of_loop(item: Json) -> bool:
    kind = item["type"]
    is_said = kind == "message" and item["role"] == "assistant"
    return kind in _CALLS or kind == "reasoning" or is_said


def _is_question(item: Json) -> bool:
    return bool(item["type"] == "message" and item["role"] == "user")


def _is_instruction(item: Json) -> bool:
    return item["type"] == "message" and item["role"] in INSTRUCTION_ROLES


def user_messages(groups: Groups) -> list[Json]:
    entries = (entry.item for group in groups for entry in group)
    return [item for item in entries if item["type"] == "message" and item["role"] == "user"]


def sealable(summary: str, tail: Sequence[HistoryItem]) -> str:
    """What a compaction item holds, as text."""
    return msgspec.json.encode(Compacted(summary, [entry.item for entry in tail])).decode()


def replaced(groups: Groups, summary: str, tail: list[HistoryItem]) -> Groups:
    """The history that an answer continues from, once this was compacted."""
    entries = [entry for group in groups for entry in group]
    kept = [entry for entry in entries if _is_instruction(entry.item)]
    return [[*kept, HistoryItem(_message(summary), "input")], tail]


def _message(summary: str) -> Json:
    message = summary_message(summary)
    content = [{"type": "input_text", "text": message.content}]
    return {"type": "message", "role": message.role, "content": content}
