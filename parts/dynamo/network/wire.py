"""What the front and its workers say to each other inside Dynamo's messages.

Dynamo carries any JSON. Ours is msgpack as text, because JSON has no infinite log-probability, and
the fields of Dynamo's own requests lose much: sampling is float32, `logit_bias` and the number of
tokens generated before do not exist. Errors are data, because Dynamo's exceptions lose their class.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, Final

import msgspec

from engines import fields
from engines.base import EngineInfo, EngineRequest, EngineStats, TokenEvent, tokens_alone
from engines.errors import EngineError
from engines.process.wire import Submit, error_from

VERSION: Final = f"4-{fields.version()}"  # older releases have a number


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """Ask a worker for its state."""

    version: str | int = VERSION


class State(msgspec.Struct, frozen=True, array_like=True, tag="state"):
    """What a worker serves and has counted."""

    info: EngineInfo
    stats: EngineStats
    version: str | int = VERSION
    handover: str | None = None  # where its engine hands K/V over: tcp://ADDRESS:PORT


class Told(msgspec.Struct, frozen=True, array_like=True, tag="told"):
    """An event that is more than tokens."""

    event: TokenEvent


class Failure(msgspec.Struct, frozen=True, array_like=True, tag="failure"):
    """The error that ended a request."""

    code: str
    message: str
    retry_s: int = 0

    @classmethod
    def of(cls, error: EngineError) -> Failure:
        return cls(error.code, str(error), error.retry_s)

    @property
    def error(self) -> EngineError:
        return error_from(self.code, self.message, self.retry_s)


Question = Ask | Submit
Answer = State | Told | Failure
Chunk = str | list[int]  # an Answer, or tokens that have nothing else to tell

_questions: Final[msgspec.msgpack.Decoder[Question]] = msgspec.msgpack.Decoder(Question)
_answers: Final[msgspec.msgpack.Decoder[Answer]] = msgspec.msgpack.Decoder(Answer)
_encode: Final = msgspec.msgpack.Encoder().encode


def written(message: Question | Answer) -> str:
    return b64encode(_encode(message)).decode()


def read_question(given: Any) -> Question:
    """The message that a worker was sent; raises ValueError for one that is not ours."""
    if not isinstance(given, str):
        raise ValueError("the request is not of Harmonium's front")
    return _questions.decode(b64decode(given))


def asked(request: EngineRequest) -> str:
    """A request as a message; raises InvalidGrammar for a grammar that is too deep."""
    return written(Submit.of(0, request))


def read_answer(given: str) -> Answer:
    return _answers.decode(b64decode(given))


class EventWriter:
    """Writes the events of one request as chunks."""

    def __init__(self) -> None:
        self._has_begun = False

    def chunk(self, event: TokenEvent) -> Chunk:
        is_plain = event.finish_reason is None and event.logprobs is None
        if self._has_begun and is_plain:
            return list(event.token_ids)
        self._has_begun = True
        return written(Told(event))


class EventReader:
    """Reads them again; tokens alone are otherwise as the last whole event."""

    def __init__(self) -> None:
        self._last: TokenEvent | None = None  # that was whole

    def event(self, chunk: Chunk) -> TokenEvent:
        """The event of a chunk; raises the error that it tells."""
        if isinstance(chunk, str):
            told = read_answer(chunk)
            if isinstance(told, Failure):
                raise told.error
            assert isinstance(told, Told)
            self._last = told.event
            return told.event
        assert self._last is not None, "the first event is whole"
        return tokens_alone(tuple(chunk), self._last)
