"""Stored responses: read, followed, stopped and deleted, by whichever process is asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, Literal

import msgspec

from parts.responses.answer.document import Json, decode, encode, joined, unfinished
from parts.responses.answer.events import OPENAI_NAMES, EventNames, ResponseEvents
from parts.responses.answer.pieces import Piece, decode_pieces, slices
from parts.responses.background import (
    SAVE_S,
    end_unfinished,
    response_jobs,
    stored_pieces,
)
from parts.responses.conversations.log import PREFIX
from parts.responses.store.base import MissingRecord, ResponseRecord
from parts.responses.stored import store_of
from service.admission.lifecycle import NotReady, Phase
from service.errors import RequestError
from service.http.failures import ended_by
from service.jobs.base import LEASE_S
from service.runtime import Runtime
from service.store.base import StoreError
from service.work import in_loop

STOP_TIMEOUT_S: Final = LEASE_S + 5  # a dead worker's job is cancelled by another after its lease
_LOST: Final = "The server that generated it has ended; send the request again."
_BEAT_S: Final = 15.0
_LAST_FENCE: Final = 1 << 40

read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _Name(msgspec.Struct):
    """What a page tells of an item that it does not show."""

    id: str


_name_of = msgspec.json.Decoder(_Name).decode


async def read(runtime: Runtime, id: str, owner: str) -> ResponseRecord:
    """The record of a response; raises a RequestError with status 404.

    One that has neither an end nor a job, and that no server of an earlier release is writing, is
    made final, as failed.
    """
    try:
        if id.startswith(PREFIX):
            raise MissingRecord(id)
        record = await store_of(runtime).get(id, owner)
        if record.is_final or await runtime.jobs.store.has(id) or _beats(runtime, record):
            return record
        await end_unfinished(runtime, id, owner, _LOST, _LAST_FENCE)
        return await store_of(runtime).get(id, owner)
    except MissingRecord as error:
        raise not_found(id) from error


def _beats(runtime: Runtime, record: ResponseRecord) -> bool:
    """Whether a server without jobs writes it: the one before, in a rolling update."""
    return abs(runtime.clock() - record.beat_at) < _BEAT_S


async def shown(runtime: Runtime, record: ResponseRecord) -> bytes:
    if record.is_final:
        return record.response
    head = decode(record.response)
    output = await joined(head, await stored_pieces(runtime, record.id))
    return encode(unfinished(head, output))


async def stop(runtime: Runtime, record: ResponseRecord) -> ResponseRecord:
    """Cancel a background response; one that has ended stays as it is."""
    if record.is_final or not await runtime.jobs.cancel(record.id):
        return await read(runtime, record.id, record.owner)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_TIMEOUT_S):
            run = response_jobs(runtime).runs.get(record.id)
            if run is not None:
                await run.left()
            while not (await read(runtime, record.id, record.owner)).is_final:
                await asyncio.sleep(SAVE_S)
    return await read(runtime, record.id, record.owner)


async def delete(runtime: Runtime, record: ResponseRecord) -> None:
    """Delete a response; a running one is stopped first."""
    await stop(runtime, record)
    try:
        await store_of(runtime).delete(record.id, record.owner)
    except MissingRecord as error:
        raise not_found(record.id) from error


async def follow(
    runtime: Runtime,
    record: ResponseRecord,
    starting_after: int = -1,
    names: EventNames = OPENAI_NAMES,
) -> AsyncGenerator[bytes, None]:
    """The events after a number, stored ones and then those to come, wherever it runs."""
    events = ResponseEvents(_head(decode(record.response)), starting_after, names)
    yield events.begin()
    try:
        async with aclosing(_pieces_of(runtime, record)) as batches:
            async for pieces in batches:
                # A whole answer is one batch, and writes itself in a third of a second.
                for some in slices(pieces):
                    yield await in_loop(partial(events.add, some))
        record = await read(runtime, record.id, record.owner)
    except (RequestError, StoreError, NotReady) as error:  # deleted meanwhile, or out of reach
        yield events.error(ended_by(error))
    else:
        yield events.end(decode(record.response))


async def _pieces_of(
    runtime: Runtime, record: ResponseRecord
) -> AsyncGenerator[Sequence[Piece], None]:
    """The pieces of a response as they are stored, to its end."""
    runs = response_jobs(runtime).runs
    num_shown = num_read = num_batches = 0
    while True:
        if (run := runs.get(record.id)) is not None:  # tells at once what it has stored
            pieces = await run.after(num_shown)
            if pieces is not None:
                num_shown += len(pieces)
                yield pieces
            continue
        record = await read(runtime, record.id, record.owner)
        # Read after the record: all that a final one was made of is there.
        for batch in await store_of(runtime).pieces(record.id, num_batches):
            pieces = await in_loop(partial(decode_pieces, batch))
            start, num_read = num_read, num_read + len(pieces)
            num_batches += 1
            if num_read > num_shown:
                yield pieces[max(num_shown - start, 0) :]
                num_shown = num_read
        if record.is_final:
            return
        if runtime.lifecycle.phase is Phase.DRAINING:
            raise NotReady(
                "The server is shutting down, and the response continues on another: request its "
                "events there, with starting_after."
            )
        await asyncio.sleep(SAVE_S)


def _head(response: Json) -> Json:
    """The response object as it was at the beginning."""
    status = "queued" if response["background"] else "in_progress"
    later = {"completed_at": None, "error": None, "incomplete_details": None, "usage": None}
    return {**response, **later, "status": status, "output": []}


def page(
    items: list[msgspec.Raw], *, after: str | None, limit: int, order: Literal["asc", "desc"]
) -> dict[str, Any]:
    """A page of items, in the shape of the API's lists."""
    ordered = items if order == "asc" else items[::-1]
    start = 0
    if after is not None:
        ids = [_id_of(item) for item in ordered]
        if after not in ids:
            raise RequestError(
                f"after is {after[:128]!r}, which is not an item of this list.",
                param="after",
                code="item_not_found",
            )
        start = ids.index(after) + 1
    shown = ordered[start : start + limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": _id_of(shown[0]) if shown else None,
        "last_id": _id_of(shown[-1]) if shown else None,
        "has_more": start + limit < len(ordered),
    }


def _id_of(item: msgspec.Raw) -> str:
    return _name_of(item).id


def not_found(id: str) -> RequestError:
    return RequestError(
        f"Response {id[:128]!r} does not exist: it was not stored, was deleted or has expired.",
        param="response_id",
        code="response_not_found",
        status=404,
    )
