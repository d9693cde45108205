"""Stored responses: read, followed, stopped and deleted, by whichever process is asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any, Literal

import msgspec

from service.api.responses.background import LOST, SAVE_S
from service.api.responses.document import (
    Json,
    ResponseEnd,
    decode,
    encode,
    ended,
    joined,
    unfinished,
)
from service.api.responses.events import OPENAI_NAMES, EventNames, ResponseEvents
from service.api.responses.pieces import Piece, decode_pieces, slices
from service.errors import RequestError
from service.http.failures import INTERNAL, Failure, failure_of
from service.runtime import FollowedRun, Runtime
from service.store.base import MissingRecord, ResponseRecord, StoreError
from service.work import in_loop

LEASE_S = 15.0  # a run that was not heard of for so long has died with its process
LOOK_S = 4 * SAVE_S  # between two looks at a run that seems dead
STOP_TIMEOUT_S = 10.0

_listed = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _Name(msgspec.Struct):
    """What a page tells of an item that it does not show."""

    id: str


_name_of = msgspec.json.Decoder(_Name).decode


async def read(runtime: Runtime, id: str, owner: str) -> ResponseRecord:
    """The record of a response; one whose run has died is made final, as failed.

    Raises a RequestError with status 404.
    """
    try:
        record = await runtime.responses.get(id, owner)
    except MissingRecord as error:
        raise not_found(id) from error
    if record.is_final or id in runtime.background or await _is_alive(runtime, record):
        return record
    end = ResponseEnd("failed", runtime.clock(), failure=Failure(INTERNAL, LOST))
    head = decode(record.response)
    output = await joined(head, await stored_pieces(runtime, id))
    await runtime.responses.finish(id, encode(ended(head, output, end)))
    return await runtime.responses.get(id, owner)


async def _is_alive(runtime: Runtime, record: ResponseRecord) -> bool:
    """Whether the run's own process still writes it; the clocks may have been set since."""
    if record.idle_s < LEASE_S:
        return True
    await asyncio.sleep(LOOK_S)
    later = await runtime.responses.get(record.id, record.owner)
    return later.is_final or later.beat_at != record.beat_at


async def shown(runtime: Runtime, record: ResponseRecord) -> bytes:
    if record.is_final:
        return record.response
    head = decode(record.response)
    output = await joined(head, await stored_pieces(runtime, record.id))
    return encode(unfinished(head, output))


async def stored_pieces(runtime: Runtime, id: str) -> list[Piece]:
    pieces: list[Piece] = []
    for batch in await runtime.responses.pieces(id):
        pieces += await in_loop(partial(decode_pieces, batch))
    return pieces


async def stop(runtime: Runtime, record: ResponseRecord) -> ResponseRecord:
    """Cancel a background response; one that has ended stays as it is."""
    if record.is_final:
        return record
    run = runtime.background.get(record.id)
    if run is not None:
        await run.stop()
    else:
        await _stop_elsewhere(runtime, record)
    return await read(runtime, record.id, record.owner)


async def _stop_elsewhere(runtime: Runtime, record: ResponseRecord) -> None:
    """Wait a while for the run's own process; one that is dead is found out by its lease."""
    await runtime.responses.request_stop(record.id)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_TIMEOUT_S):
            while not (await read(runtime, record.id, record.owner)).is_final:
                await asyncio.sleep(SAVE_S)


async def delete(runtime: Runtime, record: ResponseRecord) -> None:
    """Delete a response; a running one is stopped first."""
    await stop(runtime, record)
    try:
        await runtime.responses.delete(record.id, record.owner)
    except MissingRecord as error:
        raise not_found(record.id) from error


async def follow_run(
    run: FollowedRun, starting_after: int = -1, names: EventNames = OPENAI_NAMES
) -> AsyncGenerator[bytes, None]:
    """The events of a run of this process, from its beginning to its end."""
    events = ResponseEvents(run.head, starting_after, names)
    yield events.begin()
    num_pieces, document = 0, None
    while document is None:
        pieces, document = await run.after(num_pieces)
        num_pieces += len(pieces)
        for some in slices(pieces):
            yield await in_loop(partial(events.add, some))
    yield events.end(document)


async def follow_record(
    runtime: Runtime,
    record: ResponseRecord,
    starting_after: int,
    names: EventNames = OPENAI_NAMES,
) -> AsyncGenerator[bytes, None]:
    """The events of a response from the store: one that has ended, or runs elsewhere."""
    events = ResponseEvents(_head(decode(record.response)), starting_after, names)
    yield events.begin()
    try:
        async with aclosing(_stored_events(runtime, record, events)) as stored:
            async for written in stored:
                yield written
    except (RequestError, StoreError) as error:  # deleted meanwhile, or out of reach
        yield events.error(failure_of(error))


async def _stored_events(
    runtime: Runtime, record: ResponseRecord, events: ResponseEvents
) -> AsyncGenerator[bytes, None]:
    num_batches = 0
    while True:
        record = await read(runtime, record.id, record.owner)
        # Read after the record: all that a final one was made of is there.
        for batch in await runtime.responses.pieces(record.id, num_batches):
            num_batches += 1
            # A whole answer is one batch, and writes itself in a third of a second.
            for some in slices(await in_loop(partial(decode_pieces, batch))):
                yield await in_loop(partial(events.add, some))
        if record.is_final:
            break
        await asyncio.sleep(SAVE_S)
    yield events.end(decode(record.response))


def follow(
    runtime: Runtime, record: ResponseRecord, starting_after: int, names: EventNames
) -> AsyncGenerator[bytes, None]:
    """The events after a number, stored ones and then those to come."""
    run = runtime.background.get(record.id)
    # A run of this process tells its pieces at once; the store has them a moment later.
    if run is not None:
        return follow_run(run, starting_after, names)
    return follow_record(runtime, record, starting_after, names)


def _head(response: Json) -> Json:
    """The response object as it was at the beginning."""
    status = "queued" if response["background"] else "in_progress"
    later = {"completed_at": None, "error": None, "incomplete_details": None, "usage": None}
    return {**response, **later, "status": status, "output": []}


def page(
    record: ResponseRecord, *, after: str | None, limit: int, order: Literal["asc", "desc"]
) -> dict[str, Any]:
    """A page of a response's input items, in the shape of the API's lists."""
    items = _listed(record.input)
    ordered = items if order == "asc" else items[::-1]
    start = 0
    if after is not None:
        ids = [_id_of(item) for item in ordered]
        if after not in ids:
            raise RequestError(
                f"after is {after[:128]!r}, which is not an input item of this response.",
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
