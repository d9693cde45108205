"""The response object: what is known at its beginning, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import msgspec

from parts.responses.answer.output import ItemStatus, Output, Seal
from parts.responses.answer.pieces import Piece, slices
from service.answer.generation import Generation
from service.api.common.metrics import metrics_field
from service.http.failures import ErrorAnswer
from service.request import Counted
from service.work import in_loop

Json = dict[str, Any]
EndStatus = Literal["completed", "incomplete", "failed", "cancelled"]

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_listed = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


@dataclass(frozen=True, slots=True)
class ResponseEnd:
    """How a response ended."""

    status: EndStatus
    at: float  # seconds since 1970
    usage: Json | None = None
    failure: ErrorAnswer | None = None
    metrics: Json = field(default_factory=dict)  # the field of that name, if it is wanted

    @property
    def item_status(self) -> ItemStatus:
        """The status of the item that was being written."""
        return "completed" if self.status == "completed" else "incomplete"

    def fields(self, output: Output) -> Json:
        """The fields that the end adds to the response object."""
        is_cut = self.status == "incomplete"
        return {
            "status": self.status,
            "completed_at": int(self.at) if self.status == "completed" else None,
            "error": _error(self.failure) if self.failure else None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": output.closed(self.item_status),
            "usage": self.usage,
            **self.metrics,
        }


async def joined(head: Json, pieces: Sequence[Piece], seal: Seal | None = None) -> Output:
    """The output of a response's pieces; a hundred thousand take a tenth of a second, in turns."""
    output = Output(head, seal)
    for some in slices(pieces):
        await in_loop(partial(output.extend, some))
    return output


def ended(head: Json, output: Output, end: ResponseEnd) -> Json:
    return {**head, **end.fields(output)}


def unfinished(head: Json, output: Output) -> Json:
    if not output.items:
        return head
    return {**head, "status": "in_progress", "output": output.closed("in_progress")}


def end_of(generation: Generation, at: float, cost: Counted | None = None) -> ResponseEnd:
    """The end of a generation that ran to its own end; `cost`: of what came before it."""
    is_cut = generation.choices[0].finish_reason == "length"
    return ResponseEnd(
        "incomplete" if is_cut else "completed",
        at,
        usage_json(generation, cost),
        metrics=metrics_field(generation),
    )


def usage_json(*done: Counted | None) -> Json:
    """The usage of these generations together, under this API's names."""
    counted = [each for each in done if each is not None]
    num_input = sum(each.num_prompt_tokens for each in counted)
    num_output = sum(each.num_completion_tokens for each in counted)
    return {
        "input_tokens": num_input,
        "input_tokens_details": {
            "cached_tokens": sum(each.num_cached_tokens for each in counted),
            "cache_write_tokens": 0,
        },
        "output_tokens": num_output,
        "output_tokens_details": {
            "reasoning_tokens": sum(each.num_reasoning_tokens for each in counted)
        },
        "total_tokens": num_input + num_output,
    }


def encode(document: Json) -> bytes:
    return msgspec.json.encode(document)


def decode(stored: bytes) -> Json:
    """The reverse of encode; log-probabilities stay as they are written.

    Those of 4,000 tokens with 20 rivals each would hold up the event loop for 0.1 s.
    """
    return _opened(_fields(stored), output=_items)


def decode_items(stored: bytes) -> list[Json]:
    """The output items of an encoded response, without log-probabilities: what a prompt takes."""
    return [_opened(item, content=_bare_parts) for item in _listed(_fields(stored)["output"])]


def _bare_parts(written: msgspec.Raw) -> list[Json]:
    parts = _listed(written)
    for part in parts:
        part.pop("logprobs", None)
    return [_opened(part) for part in parts]


def _items(written: msgspec.Raw) -> list[Json]:
    return [_opened(item, content=_parts) for item in _listed(written)]


def _parts(written: msgspec.Raw) -> list[Json]:
    return [_opened(part, logprobs=msgspec.Raw) for part in _listed(written)]


def _opened(fields: dict[str, msgspec.Raw], **others: Callable[[msgspec.Raw], object]) -> Json:
    """The values of an object, `others` in a way of their own."""
    return {name: others.get(name, msgspec.json.decode)(raw) for name, raw in fields.items()}


def _error(failure: ErrorAnswer) -> Json:
    """OpenAI's list of codes has no other that fits a failing server."""
    is_prompt = failure.kind.status == 400
    is_busy = failure.kind.status == 429
    code = "invalid_prompt" if is_prompt else "rate_limit_exceeded" if is_busy else "server_error"
    return {"code": code, "message": failure.message}
