"""The lines of a batch: those of its input file, checked before any runs, and those of its results.

Reading blocks: it is done in threads, a line at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from service.http.inner import InnerAnswer
from service.work import rest

MAX_LINES: Final = 50_000
MAX_FAULTS: Final = 100  # that clients get
_MAX_ID: Final = 512  # characters of a custom_id
_AROUND: Final = 65_536  # bytes of a line beside its body
_SHOWN: Final = 80

Json = dict[str, Any]


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    model: str | None = None
    stream: Any = None
    background: Any = None


_line_of: Final = msgspec.json.Decoder(_Line).decode
_body_of: Final = msgspec.json.Decoder(_Body).decode


@dataclass(frozen=True, slots=True)
class Expected:
    """What the lines of a batch must be."""

    url: str
    models: Collection[str]  # the names that the caller may use; "" is the served model
    max_body_bytes: int


@dataclass(slots=True)
class InputLines:
    """The lines of an input file, by number from 0 on."""

    path: Path
    starts: array[int] = field(default_factory=lambda: array("q"))
    custom_ids: list[str] = field(default_factory=list)
    faults: list[Json] = field(default_factory=list)

    def read(self, index: int) -> bytes:
        """The body of a request."""
        with self.path.open("rb") as file:
            file.seek(self.starts[index])
            return bytes(_line_of(file.readline()).body)

    def _fault(self, number: int, code: str, message: str, param: str | None = None) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append({"code": code, "line": number, "message": message, "param": param})


def checked_lines(path: Path, expected: Expected) -> InputLines:
    """Read a whole input file; of one with faults nothing is run. Raises OSError."""
    lines, seen = InputLines(path), set[str]()
    most = expected.max_body_bytes + _AROUND
    with path.open("rb") as file:
        for number, (start, text) in enumerate(_texts(file, most), 1):
            rest()
            if text is None:
                message = f"The line is longer than {most} bytes; shorten the request."
                lines._fault(number, "line_too_long", message)
            elif text.strip():
                _check(lines, seen, number, text, expected)
                lines.starts.append(start)
            if len(lines.starts) > MAX_LINES:
                message = f"The file has more than {MAX_LINES} requests; split it into several."
                lines._fault(number, "batch_too_large", message)
                break
    if not lines.starts and not lines.faults:
        lines._fault(1, "empty_file", "The file has no request; each line is one.")
    return lines


def _texts(file: BinaryIO, most: int) -> Iterator[tuple[int, bytes | None]]:
    """The lines with where each begins; None instead of one that is too long."""
    start = 0
    while text := file.readline(most + 1):
        end = start + len(text)
        is_long = len(text) > most
        while text and not text.endswith(b"\n") and is_long:
            text = file.readline(most)
            end += len(text)
        yield start, None if is_long else text
        start = end


def _check(lines: InputLines, seen: set[str], number: int, text: bytes, expected: Expected) -> None:
    try:
        line = _line_of(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        lines._fault(number, "invalid_json_line", f"The line is no valid request: {error}.")
        lines.custom_ids.append("")
        return
    id = line.custom_id
    lines.custom_ids.append(id)
    if not 0 < len(id) <= _MAX_ID:
        message = f"custom_id has {len(id)} characters; give it 1 to {_MAX_ID}."
        lines._fault(number, "invalid_custom_id", message, "custom_id")
    elif id in seen:
        message = f"custom_id {id[:_SHOWN]!r} is that of an earlier line; give each its own."
        lines._fault(number, "duplicate_custom_id", message, "custom_id")
    seen.add(id)
    if line.method != "POST":
        message = f"method is {line.method[:_SHOWN]!r}; it must be POST."
        lines._fault(number, "invalid_method", message, "method")
    if line.url != expected.url:
        message = f"url is {line.url[:_SHOWN]!r}; the batch's endpoint is {expected.url}."
        lines._fault(number, "mismatched_url", message, "url")
    _check_body(lines, number, line.body, expected)


def _check_body(lines: InputLines, number: int, raw: msgspec.Raw, expected: Expected) -> None:
    try:
        body = _body_of(raw)
    except msgspec.DecodeError as error:
        lines._fault(number, "invalid_body", f"body is no valid request: {error}.", "body")
        return
    if body.stream not in (None, False):
        message = "Batches do not stream; leave out stream."
        lines._fault(number, "unsupported_value", message, "body.stream")
    if body.background not in (None, False):
        message = "A batch runs in the background; leave out background."
        lines._fault(number, "unsupported_value", message, "body.background")
    model = body.model or ""
    if model not in expected.models:
        message = f"The model {model[:_SHOWN]!r} does not exist, or you may not use it."
        lines._fault(number, "model_not_found", message, "body.model")


class _Cached(msgspec.Struct):
    cached_tokens: int = 0


class _Reasoning(msgspec.Struct):
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    """Of any of the routes."""

    input_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    completion_tokens: int = 0
    input_tokens_details: _Cached | None = None
    prompt_tokens_details: _Cached | None = None
    output_tokens_details: _Reasoning | None = None
    completion_tokens_details: _Reasoning | None = None


class _Answered(msgspec.Struct):
    usage: _Usage | None = None


class _Response(msgspec.Struct):
    body: _Answered


class _Result(msgspec.Struct):
    custom_id: str
    response: _Response | None


class _Message(msgspec.Struct):
    code: str | None = None
    message: str = ""


class _Refused(msgspec.Struct):
    error: _Message


result_of: Final = msgspec.json.Decoder(_Result).decode
_refused_of: Final = msgspec.json.Decoder(_Refused).decode
_encode: Final = msgspec.json.encode
# In a string of JSON they are only text, but str.splitlines() of Python ends lines there.
_OTHER_LINE_ENDS: Final = {
    b"\xc2\x85": b"\\u0085",
    b"\xe2\x80\xa8": b"\\u2028",
    b"\xe2\x80\xa9": b"\\u2029",
}


@dataclass(slots=True)
class ResultCounts:
    """How many requests have ended, and what they used."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def count(self, line: bytes, *, is_error: bool) -> str:
        """Count a line of the results, and return its custom_id; raises msgspec.DecodeError."""
        result = result_of(line)
        self.failed += is_error
        self.completed += not is_error
        usage = result.response.body.usage if result.response is not None else None
        if usage is not None:
            self._add(usage)
        return result.custom_id

    def _add(self, usage: _Usage) -> None:
        self.input_tokens += usage.input_tokens or usage.prompt_tokens
        self.output_tokens += usage.output_tokens or usage.completion_tokens
        cached = usage.input_tokens_details or usage.prompt_tokens_details
        self.cached_tokens += cached.cached_tokens if cached else 0
        reasoning = usage.output_tokens_details or usage.completion_tokens_details
        self.reasoning_tokens += reasoning.reasoning_tokens if reasoning else 0

    def usage(self) -> Json:
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.input_tokens + self.output_tokens,
        }


def result_line(id: str, custom_id: str, answer: InnerAnswer) -> tuple[bool, bytes]:
    """Whether a request failed, and the line of its results."""
    is_error = answer.status != 200
    response = {
        "status_code": answer.status,
        "request_id": answer.request_id,
        "body": msgspec.Raw(answer.body),
    }
    error = _error_in(answer) if is_error else None
    return is_error, _result(id, custom_id, response, error)


def unfinished_line(id: str, custom_id: str, code: str, message: str) -> bytes:
    """The line of a request that was not run to its end."""
    return _result(id, custom_id, None, {"code": code, "message": message})


def _result(id: str, custom_id: str, response: Json | None, error: Json | None) -> bytes:
    line = {"id": id, "custom_id": custom_id, "response": response, "error": error}
    encoded = _encode(line)
    for written, escaped in _OTHER_LINE_ENDS.items():
        encoded = encoded.replace(written, escaped)
    return encoded + b"\n"


def _error_in(answer: InnerAnswer) -> Json:
    try:
        error = _refused_of(answer.body).error
    except msgspec.DecodeError:
        return {"code": "server_error", "message": f"The request ended with {answer.status}."}
    return {"code": error.code or "server_error", "message": error.message}
