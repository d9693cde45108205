"""Request bodies: bounded before they are parsed, strict JSON, counted once before pydantic.

A body below NIM_MAX_BODY_BYTES may still hold millions of small things, and each costs every
layer behind this one a microsecond or more of the event loop. All bounds are above what a
context of 131,072 tokens can use; the one of messages is that of OpenAI's API.
"""

from __future__ import annotations

import asyncio
import codecs
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from service.errors import RequestError
from service.work import JsonScan, OverBudget

EDIT_BODY: Final = "harmonium.edit_body"  # in an ASGI scope: changes a body that was parsed

_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF_PAIR = re.compile(_HIGH + rb"(?!" + _LOW + rb")")
_LONG_BYTES = 65_536

MAX_KEYS_OF_ONE: Final = 4_096
MAX_DEPTH: Final = 100

# What the conversation may be; pydantic looks at each of its objects for four microseconds.
MAX_MESSAGES: Final = 2_048
MAX_MESSAGE_OBJECTS: Final = 6_144
_CONVERSATION: Final = ("messages", "input", "system")

_BODY: Final = "The body"
_CONTAINERS: Final = (dict, list)
_KINDS: Final = frozenset(_CONTAINERS)
_FEW: Final = 64


class JSONRequest(Request):
    """A request whose body is read up to the configured size and parsed strictly."""

    async def body(self) -> bytes:
        """The body's bytes; raises BodyError for more than the bounds allow."""
        if not hasattr(self, "_body"):
            self._body = await self._bounded_body()
        return self._body

    async def json(self) -> Any:
        """The parsed body; raises BodyError."""
        body = await self.body()
        await _yield_to_loop(len(body))
        parsed = parse(body)
        await _yield_to_loop(len(body))
        check_shape(parsed)
        await _yield_to_loop(len(body))
        edit: Callable[[Any], Any] | None = self.scope.get(EDIT_BODY)
        return parsed if edit is None else edit(parsed)

    async def _bounded_body(self) -> bytes:
        max_bytes = self.app.state.runtime.limits.max_body_bytes
        _check_coding(self.headers.get("content-encoding", "identity"))
        announced = self.headers.get("content-length", "")
        if announced.isdigit() and int(announced) > max_bytes:
            raise _too_large(max_bytes)
        chunks: list[bytes] = []
        size, scan, refusal = 0, BodyScan(), None
        async for chunk in self.stream():
            chunks.append(chunk)
            size += len(chunk)
            if size > max_bytes:
                raise _too_large(max_bytes)
            # A refusal waits for the rest: a client that still writes when we close may never
            # read it.
            refusal = refusal or await _refusal(scan, chunk)
        if refusal is not None:
            raise refusal
        await _yield_to_loop(size)
        return b"".join(chunks)


class JSONRoute(APIRoute):
    """A route whose body is read by JSONRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JSONRequest(request.scope, request.receive))

        return handle_json


async def _yield_to_loop(num_bytes: int) -> None:
    """Between the steps of reading a body, each of which may take some ten milliseconds."""
    if num_bytes > _LONG_BYTES:
        await asyncio.sleep(0)


async def _refusal(scan: BodyScan, chunk: bytes) -> BodyError | None:
    try:
        await scan.feed(chunk)
    except BodyError as error:
        return error
    return None


def parse(body: bytes) -> Any:
    """Parse strict JSON: no NaN, no huge numbers, no deep nesting, valid UTF-8."""
    try:
        return msgspec.json.decode(body)
    except UnicodeDecodeError as error:
        raise BodyError(f"The body is not valid UTF-8: {error.reason}.") from None
    except msgspec.ValidationError as error:
        raise BodyError(f"The body has a number that is too large: {error}") from None
    except msgspec.DecodeError as error:
        raise BodyError(f"The body is not valid JSON: {_reason(body, error)}.") from None
    except RecursionError:
        raise too_deep() from None


def _check_coding(coding: str) -> None:
    if coding.lower() != "identity":
        raise BodyError(
            f"Content-Encoding is {coding[:60]!r}; compressed bodies are not supported. Send "
            f"plain JSON.",
            status=415,
            code="unsupported_content_encoding",
        )


def _reason(body: bytes, error: msgspec.DecodeError) -> str:
    """msgspec takes half of a surrogate pair for the end of the input."""
    if found := _HALF_PAIR.search(body):
        half = found[0].decode()
        return f"{half} is half of a surrogate pair, not a character (byte {found.start()})"
    if body.startswith(codecs.BOM_UTF8):
        return "it begins with a byte order mark; send UTF-8 without one"
    return str(error)


def _too_large(max_bytes: int) -> BodyError:
    return BodyError(
        f"The body is larger than {max_bytes} bytes; shorten it, or raise NIM_MAX_BODY_BYTES.",
        status=413,
        code="body_too_large",
    )


class BodyError(HTTPException):
    """A body that is refused; FastAPI lets only HTTPException through unchanged."""

    def __init__(
        self, message: str, *, status: int = 400, code: str = "invalid_json", param: str = ""
    ) -> None:
        super().__init__(status, message)
        self.error = RequestError(message, status=status, code=code, param=param or None)


class BodyScan(JsonScan):
    """Counts what a body is made of; raises BodyError instead of OverBudget."""

    def count(self, piece: bytes) -> None:
        """Count one piece of bytes; raises BodyError when there is too much of anything."""
        try:
            super().count(piece)
        except OverBudget as error:
            raise BodyError(
                f"The body has {error}, which is above the limit; shorten it or send several "
                f"requests.",
                status=413,
                code="body_too_complex",
            ) from None


def check_shape(body: Any) -> None:
    """Look at every object and list of a body; raises BodyError naming one that is too large."""
    if isinstance(body, list):
        _num_objects(body, _BODY)
    if not isinstance(body, dict):
        return
    _check_keys(body, _BODY)
    for key, value in body.items():
        if type(value) in _CONTAINERS:
            is_conversation = key in _CONVERSATION
            if is_conversation and len(value) > MAX_MESSAGES:
                raise _too_long(key, f"{len(value)} items", MAX_MESSAGES)
            number = _num_objects(value, key)
            if is_conversation and number > MAX_MESSAGE_OBJECTS:
                raise _too_long(key, f"{number} objects and lists in it", MAX_MESSAGE_OBJECTS)


def _num_objects(root: Any, key: str) -> int:
    """Count those in a field of the body, itself included; raises BodyError."""
    level, number = [root], 0
    for _ in range(MAX_DEPTH - (key != _BODY)):
        number += len(level)
        for node in level:
            _check_keys(node, key)
        level = [child for node in level for child in _containers(node)]
        if not level:
            return number
    raise too_deep()


def _containers(node: Any) -> list[Any]:
    """The objects and lists in one; a list of a hundred thousand numbers is seen to have none."""
    values = node.values() if type(node) is dict else node
    if len(values) > _FEW and _KINDS.isdisjoint(map(type, values)):
        return []
    return [value for value in values if type(value) in _CONTAINERS]


def _check_keys(node: Any, key: str) -> None:
    if type(node) is dict and len(node) > MAX_KEYS_OF_ONE:
        where = key if key == _BODY else f"An object in {_short(key)}"
        raise BodyError(
            f"{where} has {len(node)} keys; at most {MAX_KEYS_OF_ONE} are accepted.",
            code="object_above_max_properties",
            param="" if key == _BODY else _short(key),
        )


def _too_long(key: str, found: str, limit: int) -> BodyError:
    message = (
        f"{key} has {found}; at most {limit} are accepted. Send fewer; drop the oldest messages."
    )
    return BodyError(message, code="array_above_max_length", param=key)


def too_deep() -> BodyError:
    return BodyError(f"The body is nested deeper than {MAX_DEPTH} levels; flatten it.")


def _short(key: str) -> str:
    return key[:64]
