"""Requests that name what is stored: small to send, and as much work as a caller could store.

What they name is put into the server's own file of responses: to have it generated would take
minutes.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from parts.responses.answer.pieces import Piece, encode_pieces
from parts.responses.store.base import MissingRecord, ResponseRecord
from parts.responses.store.sqlite import SqliteStore
from service.conversation import DeltaKind
from service.store.sqlite import SqliteDatabase
from tests.attack.bodies import RESPONSES
from tests.attack.server import ATTACKER

COUNT: Final = f"{RESPONSES}/input_tokens"
_NUM_ITEMS: Final = 2_000  # of a record; a request may have 2,048
_NUM_REFERENCES: Final = 1_900
_NUM_LINKS: Final = 2_000  # MAX_LINKS of parts/responses/past.py is 2,048
_NUM_TOKENS: Final = 131_000

Json = dict[str, Any]
Made = tuple[bytes, str]  # a body, and the path where it goes; no body: GET
Records = Iterator[tuple[ResponseRecord, bytes]]  # each with its pieces


@dataclass(frozen=True, slots=True)
class StoredAttack:
    """A request, and the responses that must be stored before it."""

    name: str
    path: str
    records: Callable[[ResponseRecord], Records]  # in the likeness of one
    asked: Callable[[], Json | None]  # None: the path is read
    query: str = ""

    def make(self, port: int, store: Path) -> Made:
        """Store what is needed; gives the request."""
        asyncio.run(_put(store, self.records(_pattern(port, store))))
        if (asked := self.asked()) is None:
            return b"", self.path + self.query
        short = {"max_output_tokens": 16} if self.path == RESPONSES else {}
        return json.dumps({"model": "nano", **asked, **short}).encode(), self.path


def stored_attacks() -> list[StoredAttack]:
    """A row for each field and each path that names something stored."""
    one, many = partial(_with_items, _id(1)), partial(_alone, 2, _NUM_REFERENCES)
    references = {
        "references to one response": (one, partial(_references, [_id(1)] * _NUM_REFERENCES)),
        "references to as many responses": (
            many,
            partial(_references, [_id(2, n) for n in range(_NUM_REFERENCES)]),
        ),
    }
    attacks = [
        StoredAttack(f"{_NUM_REFERENCES} {name}, {what}", path, records, asked)
        for path, what in ((RESPONSES, "answered"), (COUNT, "counted"))
        for name, (records, asked) in references.items()
    ]
    previous: dict[str, tuple[Callable[[ResponseRecord], Records], str]] = {
        "2,000 links": (partial(_chain, 3, _NUM_LINKS), _id(3, _NUM_LINKS - 1)),
        "10,000 links": (partial(_chain, 4, 10_000), _id(4, 9_999)),
        "itself": (_circle, _id(5)),
        "100 links of 2,000 items": (
            partial(_chain, 6, 100, num_items=_NUM_ITEMS),
            _id(6, 99),
        ),
        "200 links that refer to one response": (_referring, _id(7, 199)),
    }
    attacks += [
        StoredAttack(f"previous_response_id: {name}", path, records, partial(_after, last))
        for path in (RESPONSES, COUNT)
        for name, (records, last) in previous.items()
    ]
    shown = f"{RESPONSES}/{_id(8)}"
    return [
        *attacks,
        StoredAttack("replay of 131,000 tokens", shown, _long, _nothing, "?stream=true"),
        StoredAttack("131,000 tokens", shown, _long, _nothing),
        StoredAttack(
            "2,000 input items",
            f"{RESPONSES}/{_id(1)}/input_items",
            one,
            _nothing,
            f"?limit=100&after=msg_{_key(1)}i{_NUM_ITEMS // 2:04x}",
        ),
    ]


def _key(kind: int, number: int = 0) -> str:
    return f"{kind:08x}{number:024x}"


def _id(kind: int, number: int = 0) -> str:
    return f"resp_{_key(kind, number)}"


def _nothing() -> None:
    return None


def _after(last_id: str) -> Json:
    return {"previous_response_id": last_id, "input": "Hi"}


def _references(ids: list[str]) -> Json:
    named = [f"msg_{id[5:]}i{n if id == _id(1) else 0:04x}" for n, id in enumerate(ids)]
    return {"input": [{"type": "item_reference", "id": id} for id in named]}


def _with_items(id: str, like: ResponseRecord) -> Records:
    yield replace(like, id=id, input=_input(id, _NUM_ITEMS, 80)), b""


def _alone(kind: int, number: int, like: ResponseRecord) -> Records:
    for n in range(number):
        yield replace(like, id=_id(kind, n), input=_input(_id(kind, n), 1, 80)), b""


def _chain(kind: int, number: int, like: ResponseRecord, num_items: int = 1) -> Records:
    for n in range(number):
        previous = _id(kind, n - 1) if n else None
        written = _input(_id(kind, n), num_items, 5)
        yield replace(like, id=_id(kind, n), input=written, previous_id=previous), b""


def _circle(like: ResponseRecord) -> Records:
    yield replace(like, id=_id(5), previous_id=_id(5)), b""


def _referring(like: ResponseRecord) -> Records:
    yield from _with_items(_id(1), like)
    named = json.dumps([{"type": "item_reference", "id": f"msg_{_key(1)}i0001"}]).encode()
    for n in range(200):
        previous = _id(7, n - 1) if n else None
        yield replace(like, id=_id(7, n), input=named, previous_id=previous), b""


def _long(like: ResponseRecord) -> Records:
    text = [Piece(DeltaKind.CONTENT, " word")] * _NUM_TOKENS
    yield replace(like, id=_id(8)), encode_pieces(text)


def _input(id: str, number: int, num_chars: int) -> bytes:
    content = [{"type": "input_text", "text": "a " * (num_chars // 2)}]
    message = {"type": "message", "status": "completed", "role": "user", "content": content}
    return json.dumps([{"id": f"msg_{id[5:]}i{n:04x}", **message} for n in range(number)]).encode()


def _pattern(port: int, store: Path) -> ResponseRecord:
    """A response of the attacker's own, as the server stores it."""
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}{RESPONSES}",
        json.dumps({"model": "nano", "input": "Hi", "max_output_tokens": 16}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {ATTACKER}"},
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        id = json.load(answer)["id"]
    with closing(sqlite3.connect(store)) as opened:
        [owner] = opened.execute("SELECT caller FROM responses WHERE id = ?", (id,)).fetchone()
    return asyncio.run(_get(store, id, owner))


async def _get(path: Path, id: str, owner: str) -> ResponseRecord:
    store = SqliteStore(SqliteDatabase(path))
    try:
        return await store.get(id, owner)
    finally:
        await store.database.close()


async def _put(path: Path, records: Records) -> None:
    store = SqliteStore(SqliteDatabase(path))
    try:
        for record, pieces in records:
            with suppress(MissingRecord):  # of an earlier row
                await store.delete(record.id, record.owner)
            await store.put(record, pieces)
    finally:
        await store.database.close()
