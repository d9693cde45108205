"""Steps → Ollama's answers: one whole object, or a line of JSON for each piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from pydantic_core import from_json

from parts.ollama.models import timestamp
from service.answer.choice import ChoiceStep, coalesced
from service.answer.generation import Generation
from service.api.common.answer import entries
from service.conversation import Delta, DeltaKind
from service.http.failures import ErrorAnswer
from service.http.streaming import EventStream

UNPARSED_KEY: Final = "__unparsed__"  # of arguments that are no JSON object
LINES: Final = "application/x-ndjson"
_NS: Final = 1_000_000_000
_ENDS_CALL: Final = (DeltaKind.REASONING, DeltaKind.CONTENT, DeltaKind.TOOL_CALL)

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """What tells the answers of the two routes apart."""

    is_chat: bool
    model: str  # as the client calls it
    clock: Callable[[], float]
    new_call_id: Callable[[], str]

    def piece(self, text: str = "", thinking: str = "", calls: Any = ()) -> dict[str, Any]:
        """An object of the stream, or the text of a whole answer."""
        head = {"model": self.model, "created_at": timestamp(self.clock())}
        thoughts = {"thinking": thinking} if thinking else {}
        if not self.is_chat:
            return {**head, "response": text, **thoughts, "done": False}
        called = {"tool_calls": [*calls]} if calls else {}
        message = {"role": "assistant", "content": text, **thoughts, **called}
        return {**head, "message": message, "done": False}

    def loaded(self) -> dict[str, Any]:
        """The answer to a request without a prompt."""
        return self.piece() | {"done": True, "done_reason": "load"}


class Calls:
    """The calls of an answer, each whole once something else begins."""

    def __init__(self, shape: AnswerShape) -> None:
        self._shape = shape
        self._name: str | None = None
        self._arguments: list[str] = []
        self._num = 0

    def add(self, delta: Delta) -> list[dict[str, Any]]:
        """Take a piece of the answer; gives the call that it ends, if it does."""
        ended = self.end() if delta.kind in _ENDS_CALL else []
        if delta.kind is DeltaKind.TOOL_CALL:
            self._name = delta.name
        elif delta.kind is DeltaKind.ARGUMENTS:
            self._arguments.append(delta.text)
        return ended

    def end(self) -> list[dict[str, Any]]:
        if self._name is None:
            return []
        function = {
            "index": self._num,
            "name": self._name,
            "arguments": _object("".join(self._arguments)),
        }
        self._name, self._arguments, self._num = None, [], self._num + 1
        return [{"id": self._shape.new_call_id(), "function": function}]


def _object(arguments: str) -> dict[str, Any]:
    """What can be read of the arguments; those that were cut off may lack their end."""
    try:
        parsed = from_json(arguments or "{}", allow_inf_nan=False, allow_partial=True)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {UNPARSED_KEY: arguments}


def ending(generation: Generation) -> dict[str, Any]:
    """The fields of the last object: why the answer ended, and what it took."""
    began, ended = generation.started_at, generation.ended_at or generation.started_at
    first, choice = generation.first_event_at or ended, generation.choices[0]
    return {
        "done": True,
        "done_reason": "length" if choice.finish_reason == "length" else "stop",
        "total_duration": _ns(ended - began),
        "load_duration": _ns(generation.queued_s),
        "prompt_eval_count": generation.num_prompt_tokens,
        "prompt_eval_duration": _ns(first - began - generation.queued_s),
        "eval_count": generation.num_completion_tokens,
        "eval_duration": _ns(ended - first),
    }


def _ns(seconds: float) -> int:
    return max(round(seconds * _NS), 0)


class OllamaAnswer:
    """Collects the steps into one object."""

    def __init__(self, generation: Generation, shape: AnswerShape) -> None:
        self._generation = generation
        self._shape = shape
        self._calls = Calls(shape)
        self._called: list[dict[str, Any]] = []
        self._texts: dict[DeltaKind, list[str]] = {DeltaKind.CONTENT: [], DeltaKind.REASONING: []}
        self._logprobs: list[msgspec.Raw] = []

    def add(self, step: ChoiceStep) -> None:
        for delta in step.deltas:
            self._called += self._calls.add(delta)
            if delta.kind in self._texts:
                self._texts[delta.kind].append(delta.text)
                self._logprobs += _logprobs(self._generation, delta)

    def body(self) -> bytes:
        texts = {kind: "".join(pieces) for kind, pieces in self._texts.items()}
        calls = [*self._called, *self._calls.end()]
        answer = self._shape.piece(texts[DeltaKind.CONTENT], texts[DeltaKind.REASONING], calls)
        if self._generation.plan.sampling.logprobs is not None:
            answer["logprobs"] = self._logprobs
        return _encode(answer | ending(self._generation))


class OllamaLines:
    """Encodes one stream's objects; every method gives whole lines, ready to send."""

    terminator = b""

    def __init__(self, generation: Generation, shape: AnswerShape) -> None:
        self._generation = generation
        self._shape = shape
        self._calls = Calls(shape)
        # Clients parse every line: an empty piece is the only one that says nothing.
        self.keep_alive = _line(shape.piece())

    def begin(self) -> bytes:
        return b""

    def step(self, step: ChoiceStep) -> bytes:
        lines: list[bytes] = []
        for delta in coalesced(step.deltas):
            if calls := self._calls.add(delta):
                lines.append(_line(self._shape.piece(calls=calls)))
            if delta.kind is DeltaKind.CONTENT:
                piece = self._shape.piece(delta.text)
            elif delta.kind is DeltaKind.REASONING:
                piece = self._shape.piece(thinking=delta.text)
            else:
                continue
            if found := _logprobs(self._generation, delta):
                piece["logprobs"] = found
            lines.append(_line(piece))
        return b"".join(lines)

    def end(self) -> bytes:
        """The call that the end makes whole, and the object with the counts."""
        calls = self._calls.end()
        last = _line(self._shape.piece(calls=calls)) if calls else b""
        return last + _line(self._shape.piece() | ending(self._generation))

    def error(self, failure: ErrorAnswer) -> bytes:
        return _line(error_body(failure))


class LineStream(EventStream):
    """A generation answered as lines of JSON, which have no comments."""

    head = (
        (b"content-type", LINES.encode()),
        (b"x-accel-buffering", b"no"),
    )
    restarted = b""


def error_body(failure: ErrorAnswer) -> dict[str, Any]:
    """An error as Ollama's clients read it: its words."""
    return {"error": failure.message}


def _logprobs(generation: Generation, delta: Delta) -> list[msgspec.Raw]:
    choice = generation.choices[0]
    return entries(delta, choice.logprobs, choice.format) if choice.logprobs else []


def _line(value: dict[str, Any]) -> bytes:
    return _encode(value) + b"\n"
