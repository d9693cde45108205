"""Request bodies: bounded, strict JSON, errors that name the place."""

from __future__ import annotations

import asyncio
import codecs
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from service.errors import RequestError
from service.http.body_budget import (
    BodyError,
    BodyScan,
    check_shape,
    too_deep,
)

_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF_PAIR = re.compile(_HIGH + rb"(?!" + _LOW + rb")")
_LONG_BYTES = 65_536

# pydantic's kinds of error under OpenAI's names; any other is an invalid value.
_CODES = {
    "missing": "missing_required_parameter",
    "union_tag_not_found": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "unsupported_field": "unsupported_parameter",
    "unsupported_part": "unsupported_value",
    "unsupported_value": "unsupported_value",
    "invalid_grammar": "invalid_grammar",
}


class JSONRequest(Request):
    """Reads at most the configured bytes and parses them strictly."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = await self._bounded_body()
        return self._body

    async def json(self) -> Any:
        body = await self.body()
        await _let_others_on(len(body))
        parsed = parse(body)
        await _let_others_on(len(body))
        check_shape(parsed)
        await _let_others_on(len(body))
        return parsed

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
            # A refusal waits for the rest: who still writes when we close may never read it.
            refusal = refusal or await _refusal(scan, chunk)
        if refusal is not None:
            raise refusal
        await _let_others_on(size)
        return b"".join(chunks)


class JSONRoute(APIRoute):
    """A route whose body is read by JSONRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JSONRequest(request.scope, request.receive))

        return handle_json


async def _let_others_on(num_bytes: int) -> None:
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


def describe(error: RequestValidationError) -> RequestError:
    """Say the first of the errors in the words of this API."""
    first = error.errors()[0]
    location = list(first["loc"][1:])
    if first["loc"][0] in ("query", "path"):
        name = str(location[0])
        return RequestError(_message(first, name), param=name, code="invalid_value")
    if not isinstance(error.body, dict):
        return _not_an_object(error.body)
    path = _path(first, location, error.body)
    code = _CODES.get(first["type"], "invalid_value")
    return RequestError(_message(first, path), param=path or None, code=code)


def _message(error: Any, path: str) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        return f"{path} is required."
    if kind == "extra_forbidden":
        return f"{path} is not a field of this API; remove it or correct its name."
    if kind == "union_tag_not_found":
        return f"{path}.{context['discriminator'].strip(chr(39))} is required."
    if kind == "union_tag_invalid":
        key, tag = context["discriminator"].strip("'"), _shown(context["tag"])
        return f"{path}.{key} is {tag}; it must be one of {context['expected_tags']}."
    if kind in _CODES or isinstance(error["input"], dict | list):
        return f"{path}: {error['msg']}."
    return f"{path} is {_shown(error['input'])}: {error['msg']}."


def _shown(value: Any) -> str:
    """As much of a value as a message can hold; a text may have megabytes."""
    shown = repr(value[:60] if isinstance(value, str) else value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _path(error: Any, location: Sequence[str | int], body: Any) -> str:
    """The error's place in the body, where pydantic's names for union members are no keys.

    An object may have a key of such a name too, so that a location can be read in several ways:
    the right one ends at what the error is about.
    """
    places = list(_places(location, body, ""))
    right = (path for path, end in places if _is_at(error, end))
    return next(right, places[0][0] if places else "")


def _places(
    location: Sequence[str | int], here: Any, path: str
) -> Iterator[tuple[str, tuple[Any, bool]]]:
    """Every reading: a path, and what it ends at or, of a missing key, the object without it."""
    if not location:
        yield path, (here, True)
        return
    step, rest = location[0], location[1:]
    if isinstance(here, list) and isinstance(step, int) and step < len(here):
        yield from _places(rest, here[step], f"{path}[{step}]")
    if isinstance(here, dict) and isinstance(step, str):
        longer = f"{path}.{step}" if path else step
        if step in here:
            yield from _places(rest, here[step], longer)
        elif not rest:
            yield longer, (here, False)
    yield from _places(rest, here, path)


def _is_at(error: Any, end: tuple[Any, bool]) -> bool:
    value, is_there = end
    about = error["input"]
    if is_there == (error["type"] == "missing"):
        return False
    # Of an object that lacks a key, fields that ask for nothing have been left out.
    is_rest = not is_there and isinstance(about, dict) and about.items() <= value.items()
    return about is value or is_rest


def _not_an_object(body: Any) -> RequestError:
    if body is None or body == b"":
        return RequestError("The body is empty; send a JSON object.", code="invalid_json")
    if isinstance(body, bytes):
        return RequestError(
            "The body was not read as JSON; send the header Content-Type: application/json.",
            code="invalid_content_type",
        )
    return RequestError("The body must be a JSON object.", code="invalid_json")


def _check_coding(coding: str) -> None:
    if coding.lower() != "identity":
        raise BodyError(
            f"Content-Encoding is {coding[:60]!r}: bodies are read as they are; send plain JSON.",
            status=415,
            code="unsupported_content_encoding",
        )


def _reason(body: bytes, error: msgspec.DecodeError) -> str:
    """msgspec takes half of a surrogate pair for the end of the input."""
    if found := _HALF_PAIR.search(body):
        half = found[0].decode()
        return f"{half} is half of a surrogate pair, which is no character (byte {found.start()})"
    if body.startswith(codecs.BOM_UTF8):
        return "it begins with a byte order mark; send UTF-8 without one"
    return str(error)


def _too_large(max_bytes: int) -> BodyError:
    return BodyError(
        f"The body is larger than {max_bytes} bytes; shorten it, or raise NIM_MAX_BODY_BYTES.",
        status=413,
        code="body_too_large",
    )
