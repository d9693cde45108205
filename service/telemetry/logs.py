"""Log lines on stderr: readable text, or one JSON object each. Never a prompt, answer or secret."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Literal

import click
import msgspec

from service.request import log_lines_of
from service.settings.environment import allows_colour
from service.settings.terminal import width_of, wrapped
from service.telemetry.log_lines import stderr_handler

_PARTS = ("access", "audit")  # objects that a line may carry, under these names


_COLOURS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}
STANDS_OUT = {"stands_out": True}  # as `extra`: the line a person waits for
_HEAD = len("WARNING 2026-03-03 12:00:10.079")  # of every line; less bright than what it says

HIDDEN = "[redacted]"
MIN_SECRET = 6  # characters; shorter ones would blacken ordinary words

_SHAPES = re.compile(
    r"""
    (?P<scheme>\b(?:bearer|basic)\s+)(?!YOUR_KEY\b)[A-Za-z0-9._~+/=-]{8,}  # an Authorization header
    | \beyJ[\w-]{4,2000}+\.[\w-]{4,4000}+\.[\w-]*                               # a JWT
    | (?P<key>\bhmk_[0-9a-f]{12}_)[\w-]{43}                               # ours: the id may stay
    | \b(?:sk|nvapi|hf|ghp|xoxb)[-_][\w-]{16,}                             # keys of known services
    | (?P<url>[a-z]://)[^/\s@:]*+:[^/\s@]++(?=@)                          # user:password@host
    | (?P<name>\b(?:api[-_]?key|passw(?:or)?d|secret|client_secret|access_token|id_token|cookie)
        ["']?\s*[=:]\s*["']?)[^\s"',;&]{4,}
    """,
    re.IGNORECASE | re.VERBOSE,
)


# Those of C0 and C1, what else ends a line somewhere, and what turns the direction of writing.
_CONTROLS = re.compile(
    "\n(?!\n|\\Z)|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    return "\n    " if char == "\n" else char.encode("unicode_escape").decode()


class TextFormatter(logging.Formatter):
    """Writes lines like `INFO 2026-03-03 12:00:10.079 message`, in colours for a terminal.

    Only a record's first line begins at the margin, and control characters are escaped: no text
    that comes from elsewhere can look like a record or move the cursor.
    """

    def __init__(self, redact: Redactor, *, is_coloured: bool = False) -> None:
        super().__init__("%(levelname)-7s %(asctime)s.%(msecs)03d %(message)s", "%Y-%m-%d %H:%M:%S")
        self._redact = redact
        self._is_coloured = is_coloured

    def format(self, record: logging.LogRecord) -> str:
        line = _CONTROLS.sub(_escaped, self._redact(super().format(record)))
        if not self._is_coloured:
            return line
        if record.__dict__.get("stands_out"):
            return click.style(line, fg="green", bold=True)
        if colour := _COLOURS.get(record.levelname):
            return click.style(line, fg=colour)
        return click.style(line[:_HEAD], dim=True) + line[_HEAD:]


class BriefFormatter(logging.Formatter):
    """Writes a warning or an error for a person at a terminal, wrapped between words."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__("%(levelname)s: %(message)s")
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """Write a record without its time, in place of a line of progress."""
        text = _CONTROLS.sub(_escaped, self._redact(super().format(record)))
        lines = wrapped(text, width_of(sys.stderr))
        colour = _COLOURS.get(record.levelname) if allows_colour() else None
        return "\r\x1b[2K" + click.style("\n".join(lines), fg=colour)


class JSONFormatter(logging.Formatter):
    """Writes one JSON object a line, with NIM's keys and then ours."""

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
            "message": self._redact(record.__dict__.get("brief") or record.getMessage()),
            **self._exception(record),
            **self._context(),
            **{name: self._redact.clean(record.__dict__[name]) for name in parts_of(record)},
        }
        return msgspec.json.encode(fields).decode()

    def _exception(self, record: logging.LogRecord) -> dict[str, str]:
        if not record.exc_info:
            return {}
        return {"exc_info": self._redact(self.formatException(record.exc_info))}

    def _context(self) -> dict[str, str]:
        context = log_lines_of()
        ids = context.log_ids if context is not None else {}
        return {name: self._redact(id) for name, id in ids.items()}  # one of them is the client's


def parts_of(record: logging.LogRecord) -> list[str]:
    """The names of the objects that a log record carries beside its message."""
    return [name for name in _PARTS if isinstance(record.__dict__.get(name), dict)]


def configure(
    level: str, is_json: bool, secrets: Iterable[str] = (), *, is_brief: bool = False
) -> None:
    """Send every logger's lines to stderr in one format, with the secrets replaced.

    `is_brief`: warnings and errors only, as a person reads them.
    """
    redact = Redactor(secrets)
    is_coloured = sys.stderr.isatty() and allows_colour()
    formatter: Any = (
        JSONFormatter(redact) if is_json else TextFormatter(redact, is_coloured=is_coloured)
    )
    if is_brief:
        level, formatter = "WARNING", BriefFormatter(redact)
    handler = stderr_handler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in ("asyncio", "uvicorn", "httpx2", "httpcore2", "opentelemetry"):
        logging.getLogger(name).setLevel("WARNING")


def choose(access_log: bool, audit_log: Literal["all", "refused"]) -> None:
    """Leave out what the operator does not want: after configure(), in the process that answers."""
    if not access_log:
        logging.getLogger("harmonium.access").setLevel("WARNING")
    if audit_log == "refused":
        logging.getLogger("harmonium.audit").addFilter(_is_no_grant)


def _is_no_grant(record: logging.LogRecord) -> bool:
    audit = record.__dict__.get("audit")
    return not isinstance(audit, dict) or audit.get("event") != "auth.granted"


class Redactor:
    """Replaces secrets in any text: those it was given, and what looks like one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        given = {secret for secret in secrets if len(secret) >= MIN_SECRET}
        # A header's value is read as Latin-1, whatever it was written in.
        misread = {secret.encode(errors="replace").decode("latin-1") for secret in given}
        exact = sorted(given | misread, key=len, reverse=True)
        self._exact = re.compile("|".join(map(re.escape, exact))) if exact else None

    def __call__(self, text: str) -> str:
        if self._exact is not None:
            text = self._exact.sub(HIDDEN, text)
        return _SHAPES.sub(_hide, text)

    def clean(self, value: object) -> object:
        """The value with every text in it redacted, in lists and mappings too."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {key: self.clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.clean(item) for item in value]
        return value if value is None or isinstance(value, int | float) else self(str(value))


def _hide(match: re.Match[str]) -> str:
    return next((kept for kept in match.groups() if kept), "") + HIDDEN
