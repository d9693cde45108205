"""Log lines on stderr: readable text, or one JSON object each. Never a prompt or an answer."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec


class TextFormatter(logging.Formatter):
    """`INFO 2026-03-03 12:00:10.079 message`"""

    def __init__(self) -> None:
        super().__init__("%(levelname)-7s %(asctime)s.%(msecs)03d %(message)s", "%Y-%m-%d %H:%M:%S")


class JSONFormatter(logging.Formatter):
    """One object a line, with NIM's keys."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "level": record.levelname,
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "logger": record.name,
            "file_name": record.filename,
            "line_number": record.lineno,
            "message": record.getMessage(),
            "exc_info": self.formatException(record.exc_info) if record.exc_info else None,
        }
        return msgspec.json.encode(fields).decode()


def configure(level: str, is_json: bool) -> None:
    """Send every logger's lines to stderr in one format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter() if is_json else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel("WARNING")
    logging.getLogger("uvicorn").setLevel("WARNING")
