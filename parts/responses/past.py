"""What a request goes back to: earlier responses, and single items by their ids.

Both may be much: so records are read one after the other, each is decoded once for a request, and
the event loop has its turns meanwhile (service/work.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from parts.responses.answer.document import decode_items
from parts.responses.conversations.log import PREFIX, KeptConversation
from parts.responses.items import HistoryItem
from parts.responses.store.base import MissingRecord, PastRecords, ResponseRecord
from service.errors import RequestError
from service.work import in_loop

Json = dict[str, Any]
Groups = list[list[HistoryItem]]

# More of any of them than a context of 131,072 tokens can hold.
MAX_LINKS: Final = 2_048  # earlier responses
MAX_ITEMS: Final = 16_384  # of them together
MAX_CHARS: Final = 64 << 20  # of the texts of those items

_PREVIOUS: Final = "previous_response_id"
_CONVERSATION: Final = "conversation"
_REFERENCE: Final = "item_reference"
_KEY_CHARS: Final = 32  # of a response's id, with which the ids of its items begin

_listed = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _Name(msgspec.Struct):
    """What tells a stored item from others; the rest of it is skipped."""

    id: str
    type: str


_name_of = msgspec.json.Decoder(_Name).decode


async def conversation_groups(
    store: PastRecords,
    continued: str | KeptConversation | None,
    given: Sequence[Json],
    owner: str,
) -> Groups:
    """Input and output of the earlier responses, oldest first, then the given items; references
    are replaced by the items they name. Raises RequestError.

    `continued`: the id of a response, or a conversation.
    """
    if isinstance(continued, KeptConversation):
        past = _Past(store, owner, _CONVERSATION)
        groups = await past.groups_of(continued)
    else:
        past = _Past(store, owner)
        groups = await past.groups_before(continued)
    groups.append([_given(item, index) for index, item in enumerate(given)])
    named = await past.items_named(groups)
    return [[_resolved(entry, named) for entry in group] for group in groups] if named else groups


def _given(item: Json, index: int) -> HistoryItem:
    param = f"input[{index}].id" if _is_reference(item) else f"input[{index}]"
    return HistoryItem(item, param)


def _resolved(entry: HistoryItem, named: dict[str, Json]) -> HistoryItem:
    return replace(entry, item=named[entry.item["id"]]) if _is_reference(entry.item) else entry


def _is_reference(item: Json) -> bool:
    return bool(item["type"] == _REFERENCE)


class _Past:
    """What one request reads from the store, and how much that is."""

    def __init__(self, store: PastRecords, owner: str, param: str = _PREVIOUS) -> None:
        self._store = store
        self._owner = owner
        self._param = param
        self._num_items = 0
        self._num_chars = 0

    async def groups_before(self, id: str | None) -> Groups:
        """The input and the output of each earlier response, oldest first."""
        groups: Groups = []  # newest first
        next_id = id
        while next_id is not None:
            if len(groups) == 2 * MAX_LINKS:
                raise _too_much(f"{MAX_LINKS} responses", self._param)
            record = await self._record(id or "", next_id)
            if not (groups or record.is_final):
                raise RequestError(
                    f"previous_response_id is {next_id!r}, which is still in progress; wait until "
                    f"it is complete.",
                    param=_PREVIOUS,
                    code="previous_response_in_progress",
                )
            groups += await in_loop(partial(self._groups_of, record))
            next_id = record.previous_id
        return groups[::-1]

    async def groups_of(self, kept: KeptConversation) -> Groups:
        """What a conversation holds, in the groups in which it came."""
        read = partial(self._read_group, kept.items)
        return [await in_loop(partial(read, ids)) for ids in kept.groups]

    async def items_named(self, groups: Groups) -> dict[str, Json]:
        """The items by their ids that these groups refer to; each record is read once."""
        named: dict[str, Json] = {}
        references = _references(groups)
        if references and self._param == _CONVERSATION:
            named = {e.item["id"]: e.item for g in groups for e in g if not _is_reference(e.item)}
        for key, params in references.items():
            if named.keys() >= params.keys():
                continue
            try:
                # Our ids of items hold the response's id, so that no index of items is needed.
                record = await self._store.get(f"resp_{key}", self._owner)
            except MissingRecord:
                found = {}
            else:
                found = await in_loop(partial(self._items_of, record, params))
            for id, param in params.items():
                if id not in found and id not in named:
                    raise _no_item(id, param)
            named |= found
        return named

    async def _record(self, first_id: str, id: str) -> ResponseRecord:
        try:
            if id.startswith(PREFIX):
                raise MissingRecord(id)
            return await self._store.get(id, self._owner)
        except MissingRecord as error:
            raise _not_found(first_id, error.id) from error

    def _groups_of(self, record: ResponseRecord) -> Groups:
        """Output and input: the newer before the older."""
        output: list[Json] = decode_items(record.response)
        given: list[Json] = msgspec.json.decode(record.input)
        self._count(len(given) + len(output), len(record.input) + sum(map(_num_chars, output)))
        return [[HistoryItem(item, _PREVIOUS) for item in group] for group in (output, given)]

    def _items_of(self, record: ResponseRecord, ids: Collection[str]) -> dict[str, Json]:
        found: dict[str, Json] = {}
        for written in _listed(record.input):
            name = _name_of(written)
            if name.id in ids and name.type != _REFERENCE:
                found.setdefault(name.id, msgspec.json.decode(written))
        for item in decode_items(record.response):
            if item["id"] in ids:
                found.setdefault(item["id"], item)
        self._count(len(found), sum(map(_num_chars, found.values())))
        return found

    def _read_group(self, items: Mapping[str, msgspec.Raw], ids: list[str]) -> list[HistoryItem]:
        written = [items[id] for id in ids if id in items]
        self._count(len(written), sum(len(memoryview(item)) for item in written))
        return [HistoryItem(msgspec.json.decode(item), self._param) for item in written]

    def _count(self, num_items: int, num_chars: int) -> None:
        self._num_items += num_items
        self._num_chars += num_chars
        if self._num_items > MAX_ITEMS:
            raise _too_much(f"{MAX_ITEMS} items", self._param)
        if self._num_chars > MAX_CHARS:
            raise _too_much(f"{MAX_CHARS >> 20} MiB of text", self._param)


def _references(groups: Groups) -> dict[str, dict[str, str]]:
    """By key of a response, the ids of its items that are named, each with the first field."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for group in groups:
        for entry in group:
            if _is_reference(entry.item):
                id = entry.item["id"]
                found[id.partition("_")[2][:_KEY_CHARS]].setdefault(id, entry.param)
    return found


def _num_chars(value: object) -> int:
    """Characters of all texts in an item."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_num_chars, value.values()))
    return sum(map(_num_chars, value)) if isinstance(value, list) else 0


def _too_much(limit: str, param: str) -> RequestError:
    return RequestError(
        f"{param} and the items that input refers to bring more than {limit}, the "
        f"limit; send the newest part of the conversation as input instead.",
        param=param,
        code="history_too_long",
    )


def _no_item(id: str, param: str) -> RequestError:
    is_past = param in (_PREVIOUS, _CONVERSATION)
    refers = f"{param} goes back to a reference to" if is_past else f"{param} is"
    instead = "the conversation as input" if is_past else "the item itself"
    return RequestError(
        f"{refers} {id[:128]!r}, and no stored item has that id; send {instead}.",
        param=param,
        code="item_not_found",
        status=404,
    )


def _not_found(id: str, missing_id: str) -> RequestError:
    earlier = "" if missing_id == id else f", which goes back to {missing_id!r}"
    return RequestError(
        f"previous_response_id is {id[:128]!r}{earlier}: no such response is stored. It was not "
        f"stored, was deleted or has expired; send the conversation as input.",
        param=_PREVIOUS,
        code="previous_response_not_found",
    )
