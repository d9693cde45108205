"""The API workers of one server ask each other for an answer: each listens on a Unix socket in the
folder that they share, which no other user can open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from service.answer.running import ControlOutcome, RunningAnswers

log = logging.getLogger(__name__)

_PREFIX: Final = "control-"
_PATIENCE_S: Final = 2.0  # of a question: longer than any loop is busy
_MOST_BYTES: Final = 4096  # of a message


class _Question(msgspec.Struct):
    id: str
    tenant: str


class Neighbours:
    """Ends the reasoning of an answer, in whichever worker it runs."""

    def __init__(self, answers: RunningAnswers, folder: Path | None) -> None:
        """`folder`: where the workers meet; None: this is the only one."""
        self._answers = answers
        self._folder = folder
        self._own = None if folder is None else folder / f"{_PREFIX}{os.getpid()}"

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Answer the others inside the block."""
        if self._own is None:
            yield
            return
        server = await asyncio.start_unix_server(self._reply, self._own, limit=_MOST_BYTES)
        try:
            yield
        finally:
            server.close()
            self._own.unlink(missing_ok=True)

    async def end_reasoning(self, id: str, tenant: str) -> ControlOutcome:
        told = self._answers.end_reasoning(id, tenant)
        if told is not ControlOutcome.UNKNOWN or self._folder is None:
            return told
        others = (path for path in self._folder.glob(f"{_PREFIX}*") if path != self._own)
        question = msgspec.json.encode(_Question(id, tenant)) + b"\n"
        replies = await asyncio.gather(*(_ask(path, question) for path in others))
        known = (reply for reply in replies if reply is not ControlOutcome.UNKNOWN)
        return next(known, ControlOutcome.UNKNOWN)

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), suppress(OSError, ValueError, msgspec.DecodeError):
            asked = msgspec.json.decode(await reader.readline(), type=_Question)
            writer.write(self._answers.end_reasoning(asked.id, asked.tenant).encode() + b"\n")
            await writer.drain()


async def _ask(path: Path, question: bytes) -> ControlOutcome:
    """Another worker's reply; UNKNOWN from one that has died, and took its answers with it."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            reader, writer = await asyncio.open_unix_connection(path, limit=_MOST_BYTES)
            with contextlib.closing(writer):
                writer.write(question)
                return ControlOutcome((await reader.readline()).decode().strip())
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
    except (OSError, ValueError, TimeoutError) as error:
        log.warning("Another API worker did not say whether an answer is its own: %r", error)
    return ControlOutcome.UNKNOWN
