"""Message batches and their results, from what the store and its files have."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from parts.batches.run import CANCELLED
from parts.batches.store.base import StoredObject
from parts.batches.stored import Json, document_of, encode

_PIECE: Final = 1 << 16  # bytes of results
_EXPIRED: Final = "batch_expired"


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw


class _Error(msgspec.Struct):
    code: str
    message: str


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response | None
    error: _Error | None


_line_of: Final = msgspec.json.Decoder(_Line).decode


def results_in(paths: list[Path]) -> Iterator[bytes]:
    """Pieces of the results; starlette reads them in a thread."""
    for path in paths:
        piece = bytearray()
        with path.open("rb") as file:
            for text in file:
                line = _line_of(text)
                result = {"custom_id": line.custom_id, "result": _result(line)}
                piece += encode(result) + b"\n"
                if len(piece) >= _PIECE:
                    yield bytes(piece)
                    piece.clear()
        yield bytes(piece)


def _result(line: _Line) -> Json:
    if line.response is not None:
        if line.response.status_code == 200:
            return {"type": "succeeded", "message": line.response.body}
        return {"type": "errored", "error": line.response.body}
    assert line.error is not None
    if line.error.code in (CANCELLED, _EXPIRED):
        return {"type": "canceled" if line.error.code == CANCELLED else "expired"}
    error = {"type": "api_error", "message": line.error.message}
    return {"type": "errored", "error": {"type": "error", "error": error}}


def shown(found: StoredObject) -> Json:
    document = document_of(found)
    counts, ended_at = document["request_counts"], None
    for status in ("completed", "failed", "expired", "cancelled"):
        ended_at = ended_at or document[f"{status}_at"]
    status = document["status"]
    tallied = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    if ended_at is None:
        tallied["processing"] = counts["total"]
    else:
        not_run = document.get("not_run", 0) if status in ("cancelled", "expired") else 0
        tallied["succeeded"] = counts["completed"]
        tallied["canceled" if status == "cancelled" else "expired"] = not_run
        tallied["errored"] = counts["total"] - counts["completed"] - not_run
    is_canceling = bool(found.cancelled_at) and ended_at is None
    in_progress = "canceling" if is_canceling else "in_progress"
    return {
        "id": found.id,
        "type": "message_batch",
        "processing_status": in_progress if ended_at is None else "ended",
        "request_counts": tallied,
        "created_at": _time(document["created_at"]),
        "expires_at": _time(document["expires_at"]),
        "ended_at": _time(ended_at),
        "cancel_initiated_at": _time(found.cancelled_at or None),
        "archived_at": None,
        "results_url": None if ended_at is None else f"/v1/messages/batches/{found.id}/results",
    }


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
