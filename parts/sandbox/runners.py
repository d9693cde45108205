"""The tools that run here: a sandbox for each answer that calls one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from parts.sandbox.jail import Guest
from parts.sandbox.sandbox import Sandbox, SandboxBeside
from service.tools import ConnectedTool, ToolResult

CALL_S: Final = 30.0
PYTHON: Final = Guest("python", "python")
BROWSER: Final = Guest("browser", "browser.tool", has_network=True)
GUESTS: Final = {guest.name: guest for guest in (PYTHON, BROWSER)}
MOST: Final = 16  # sandboxes of an API worker, or of a host beside it, at a time, of each tool
MOST_BYTES: Final = 1 << 20  # of code, or of arguments
# As gpt-oss's published tool says it; the model takes an empty text for a failure.
_NOTHING: Final = (
    "[WARN] No output available. Use print() to output anything to stdout to receive the output"
)


def python(at: Path | None = None) -> ConnectedTool:
    """The tool `python`; `at`: the folder of a host's socket (host.py)."""
    room = asyncio.Semaphore(MOST)
    return ConnectedTool(lambda headers, answer: SandboxRunner(PYTHON, room, at), CALL_S)


def browser(service: Mapping[str, str], at: Path | None = None) -> ConnectedTool:
    """The tool `browser`; `service` has the `name` of a search service, or its URL, and a `key`."""
    room = asyncio.Semaphore(MOST)
    return ConnectedTool(lambda headers, answer: BrowserRunner(BROWSER, room, at, service), CALL_S)


class SandboxRunner:
    """Implements service.tools.ToolRunner; what the calls made is gone with it."""

    def __init__(self, guest: Guest, room: asyncio.Semaphore, at: Path | None) -> None:
        self._guest = guest
        self._room = room
        self._at = at
        self.sandbox: Sandbox | SandboxBeside | None = None

    async def call(self, action: str, text: str) -> ToolResult:
        name = self._guest.name
        if len(asked := self._asked(action, text)) > MOST_BYTES:
            return ToolResult(f"Error: that has over {MOST_BYTES} bytes.", is_error=True)
        if self.sandbox is None:
            if self._room.locked():
                busy = f"Error: {name} is busy, {MOST} answers use it; try again later."
                return ToolResult(busy, is_error=True)
            await self._room.acquire()
            at, guest = self._at, self._guest
            self.sandbox = Sandbox(guest) if at is None else SandboxBeside(guest, at)
        return self._told(await self.sandbox.ask(asked))

    async def close(self) -> None:
        if (sandbox := self.sandbox) is not None:
            self.sandbox = None
            try:
                await asyncio.shield(sandbox.close())
            finally:
                self._room.release()

    def _asked(self, action: str, text: str) -> bytes:
        return text.encode("utf-8", "replace")

    def _told(self, found: str) -> ToolResult:
        return ToolResult(found or _NOTHING)


class BrowserRunner(SandboxRunner):
    """With each call goes what it may search by: the sandbox has no other way to know it."""

    def __init__(
        self, guest: Guest, room: asyncio.Semaphore, at: Path | None, service: Mapping[str, str]
    ) -> None:
        super().__init__(guest, room, at)
        self._service = service

    def _asked(self, action: str, text: str) -> bytes:
        head = json.dumps({"action": action, "service": dict(self._service)})
        return f"{head}\n{text}".encode("utf-8", "replace")

    def _told(self, found: str) -> ToolResult:
        return ToolResult(found, is_error=found.startswith("Error: "))
