"""Conversations: each is a log in the store of responses, a record that never becomes final.

A change is one batch of the log, which the store adds in one transaction: items, a whole turn, an
item that is removed, new metadata. So changes by several processes never mix, and of two responses
on one conversation each adds its turn whole, when it has ended.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from parts.responses.answer.document import decode_items
from parts.responses.store.base import MissingRecord, ResponseRecord
from parts.responses.stored import store_of
from service.errors import RequestError
from service.runtime import Runtime
from service.work import in_loop

log = logging.getLogger(__name__)

Json = dict[str, Any]

PREFIX: Final = "conv_"
MAX_BYTES: Final = 64 << 20  # of a log, removed items included
MAX_CHANGES: Final = 32_768
_ENDS: Final = ("completed", "incomplete")  # of responses that are kept


class Change(msgspec.Struct, omit_defaults=True):
    """One batch of a log."""

    items: list[msgspec.Raw] = []
    output: list[msgspec.Raw] = []  # of the response to these items
    response: str = ""  # its id; a run that continues another may add the same turn again
    removed: str = ""  # the id of an item
    metadata: dict[str, str] | None = None


class _Name(msgspec.Struct):
    id: str


_read_change = msgspec.json.Decoder(Change).decode
_name_of = msgspec.json.Decoder(_Name).decode


@dataclass(slots=True)
class KeptConversation:
    """What a log comes to."""

    id: str
    owner: str
    created_at: int
    metadata: dict[str, str]
    items: dict[str, msgspec.Raw] = field(default_factory=dict)  # by their ids, in order
    groups: list[list[str]] = field(default_factory=list)  # one request's input, or one answer
    num_changes: int = 0
    num_bytes: int = 0
    _responses: set[str] = field(default_factory=set)

    def apply(self, batch: bytes) -> None:
        """Add the next batch of the log."""
        self.num_changes += 1
        self.num_bytes += len(batch)
        change = _read_change(batch)
        if change.metadata is not None:
            self.metadata = change.metadata
        if change.removed:
            self.items.pop(change.removed, None)
        if change.response in self._responses:
            return
        if change.response:
            self._responses.add(change.response)
        for group in (change.items, change.output):
            ids = [_name_of(item).id for item in group]
            self.groups.append([id for id in ids if id not in self.items])
            for id, item in zip(ids, group, strict=True):
                self.items.setdefault(id, item)

    def item(self, id: str) -> msgspec.Raw:
        """Raises a RequestError with status 404."""
        if id not in self.items:
            raise RequestError(
                f"Conversation {self.id} has no item {id[:128]!r}: it was deleted, or never added.",
                param="item_id",
                code="item_not_found",
                status=404,
            )
        return self.items[id]

    def shown(self) -> Json:
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": self.created_at,
            "metadata": self.metadata,
        }


async def create(
    runtime: Runtime, owner: str, items: list[Json], metadata: dict[str, str]
) -> KeptConversation:
    """Store a conversation that begins with these items."""
    id, created_at = f"{PREFIX}{runtime.new_id()}", int(runtime.clock())
    made = KeptConversation(id, owner, created_at, metadata)
    head = msgspec.json.encode(made.shown())
    record = ResponseRecord(id, owner, head, b"[]", is_final=False)
    await store_of(runtime).put(record, _encoded(items=items) if items else b"")
    return made


async def read(
    runtime: Runtime, id: str, owner: str, param: str = "conversation_id"
) -> KeptConversation:
    """The conversation of this id and owner; raises a RequestError with status 404."""
    store = store_of(runtime)
    try:
        if not id.startswith(PREFIX):
            raise MissingRecord(id)
        record = await store.get(id, owner)
    except MissingRecord:
        raise not_found(id, param) from None
    head = msgspec.json.decode(record.response)
    kept = KeptConversation(id, owner, head["created_at"], head["metadata"])
    for batch in await store.pieces(id):
        await in_loop(partial(kept.apply, batch))
    return kept


async def change(runtime: Runtime, kept: KeptConversation, **changes: Any) -> None:
    """Add a Change of these fields to a log; raises RequestError."""
    batch = _encoded(**changes)
    if kept.num_bytes + len(batch) > MAX_BYTES or kept.num_changes >= MAX_CHANGES:
        raise RequestError(
            f"Conversation {kept.id} is full: it takes {MAX_BYTES >> 20} MiB or {MAX_CHANGES} "
            f"changes; begin another one.",
            param="conversation_id",
            code="history_too_long",
        )
    if not await store_of(runtime).extend(kept.id, batch):
        raise not_found(kept.id, "conversation_id")


async def delete(runtime: Runtime, id: str, owner: str) -> None:
    """Forget a conversation; raises a RequestError with status 404."""
    try:
        if not id.startswith(PREFIX):
            raise MissingRecord(id)
        await store_of(runtime).delete(id, owner)
    except MissingRecord:
        raise not_found(id, "conversation_id") from None


async def add_turn(runtime: Runtime, document: Json, given: bytes) -> None:
    """Add a response that has ended well, and its input, to its conversation, if it has one."""
    kept = document.get("conversation")
    if kept is None or document["status"] not in _ENDS:
        return
    output = await in_loop(lambda: decode_items(msgspec.json.encode(document)))
    batch = _encoded(items=msgspec.Raw(given), output=output, response=document["id"])
    if not await store_of(runtime).extend(kept["id"], batch):
        log.debug("response %s: %s was deleted meanwhile", document["id"], kept["id"])


def _encoded(**changes: Any) -> bytes:
    return msgspec.json.encode(changes)


def not_found(id: str, param: str) -> RequestError:
    return RequestError(
        f"Conversation {id[:128]!r} does not exist: it was never made, was deleted or has expired.",
        param=param,
        code="conversation_not_found",
        status=404,
    )
