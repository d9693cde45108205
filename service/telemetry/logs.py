"""Log lines on stderr: readable text, or one JSON object each. Never a prompt, answer or secret."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from service.request import log_lines_of
from service.settings.settings import allows_colour
from service.telemetry.redaction import Redactor

_PARTS = ("access", "audit")  # objects that a line may carry, under these names


_COLOURS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}
STANDS_OUT = {"stands_out": True}  # as `extra`: the line a person waits for


class TextFormatter(logging.Formatter):
    """`INFO 2026-03-03 12:00:10.079 message`, in colours for a terminal."""

    def __init__(self, redact: Redactor, *, is_coloured: bool = False) -> None:
        super().__init__("%(levelname)-7s %(asctime)s.%(msecs)03d %(message)s", "%Y-%m-%d %H:%M:%S")
        self._redact = redact
        self._is_coloured = is_coloured

    def format(self, record: logging.LogRecord) -> str:
        line = self._redact(super().format(record))
        if not self._is_coloured:
            return line
        if record.__dict__.get("stands_out"):
            return click.style(line, fg="green", bold=True)
        colour = _COLOURS.get(record.levelname)
        return click.style(line, fg=colour) if colour else line


class JSONFormatter(logging.Formatter):
    """One object a line, with NIM's keys and then ours."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__()
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "level": record.levelname,
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "logger": record.name,
            "file_name": record.filename,
            "line_number": record.lineno,
            "process": record.process,
            "message": self._redact(record.getMessage()),
            "exc_info": self._exception(record),
            **self._context(),
            **{name: self._redact.clean(record.__dict__[name]) for name in parts_of(record)},
        }
        return msgspec.json.encode(fields).decode()

    def _exception(self, record: logging.LogRecord) -> str | None:
        return self._redact(self.formatException(record.exc_info)) if record.exc_info else None

    def _context(self) -> dict[str, str]:
        context = log_lines_of()
        ids = context.log_ids if context is not None else {}
        return {name: self._redact(id) for name, id in ids.items()}  # one of them is the client's


def parts_of(record: logging.LogRecord) -> list[str]:
    """The objects that a line carries."""
    return [name for name in _PARTS if isinstance(record.__dict__.get(name), dict)]


def configure(level: str, is_json: bool, secrets: Iterable[str] = ()) -> None:
    """Send every logger's lines to stderr in one format, less the secrets."""
    redact = Redactor(secrets)
    is_coloured = sys.stderr.isatty() and allows_colour()
    formatter: Any = (
        JSONFormatter(redact) if is_json else TextFormatter(redact, is_coloured=is_coloured)
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in ("asyncio", "uvicorn", "httpx", "httpcore", "opentelemetry"):
        logging.getLogger(name).setLevel("WARNING")
