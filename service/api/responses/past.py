"""What a request goes back to: earlier responses, and single items by their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from service.api.responses.document import decode
from service.api.responses.items import HistoryItem
from service.errors import RequestError
from service.store.base import MissingRecord, ResponseRecord, ResponseStore

Json = dict[str, Any]

_PREVIOUS = "previous_response_id"
_KEY_CHARS = 32  # of a response's id, with which the ids of its items begin


async def past_groups(store: ResponseStore, id: str | None, owner: str) -> list[list[HistoryItem]]:
    """Input and output of the earlier responses, oldest first; raises RequestError."""
    if id is None:
        return []
    try:
        records = await store.history(id, owner)
    except MissingRecord as error:
        raise _not_found(id, error.id) from error
    if not records[-1].is_final:
        raise RequestError(
            f"previous_response_id is {id!r}, which is still in progress; wait until it is "
            f"complete.",
            param=_PREVIOUS,
            code="previous_response_in_progress",
        )
    groups: list[list[Json]] = []
    for record in records:
        groups += [await _input(store, record, owner), decode(record.response)["output"]]
    return [[HistoryItem(item, _PREVIOUS) for item in group] for group in groups]


async def _input(store: ResponseStore, record: ResponseRecord, owner: str) -> list[Json]:
    items: list[Json] = msgspec.json.decode(record.input)
    return [entry.item for entry in await resolved(store, items, owner)]


async def resolved(store: ResponseStore, items: Sequence[Json], owner: str) -> list[HistoryItem]:
    """The input items in their order, references replaced by the items they name; raises
    RequestError."""
    entries: list[HistoryItem] = []
    for index, item in enumerate(items):
        if item["type"] == "item_reference":
            param = f"input[{index}].id"
            entries.append(HistoryItem(await _referenced(store, item["id"], owner, param), param))
        else:
            entries.append(HistoryItem(item, f"input[{index}]"))
    return entries


async def _referenced(store: ResponseStore, id: str, owner: str, param: str) -> Json:
    """Our ids of items hold the response's id, so that no index of items is needed."""
    key = id.partition("_")[2][:_KEY_CHARS]
    try:
        record = await store.get(f"resp_{key}", owner)
    except MissingRecord:
        found = []
    else:
        items = [*msgspec.json.decode(record.input), *decode(record.response)["output"]]
        found = [item for item in items if item["id"] == id and item["type"] != "item_reference"]
    if not found:
        raise RequestError(
            f"{param} is {id[:128]!r}, and no stored item has that id; send the item itself.",
            param=param,
            code="item_not_found",
            status=404,
        )
    item: Json = found[0]
    return item


def _not_found(id: str, missing_id: str) -> RequestError:
    earlier = "" if missing_id == id else f", which goes back to {missing_id!r}"
    return RequestError(
        f"previous_response_id is {id[:128]!r}{earlier}: no such response is stored. It was not "
        f"stored, was deleted or has expired; send the conversation as input.",
        param=_PREVIOUS,
        code="previous_response_not_found",
    )
