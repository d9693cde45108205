"""The tools that run here: a sandbox for each answer that calls one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Final

from parts.sandbox.jail import Guest
from parts.sandbox.sandbox import Sandbox
from service.tools import ConnectedTool, ToolResult

CALL_S: Final = 30.0
PYTHON: Final = Guest("python", "python")
BROWSER: Final = Guest("browser", "browser.tool", has_network=True)
_MOST: Final = 16  # sandboxes of an API worker at a time, of each tool
_MOST_BYTES: Final = 1 << 20  # of code, or of arguments
# As gpt-oss's published tool says it; the model takes an empty text for a failure.
_NOTHING: Final = (
    "[WARN] No output available. Use print() to output anything to stdout to receive the output"
)


def python() -> ConnectedTool:
    """The tool `python`."""
    room = asyncio.Semaphore(_MOST)
    return ConnectedTool(lambda headers, answer: SandboxRunner(PYTHON, room), CALL_S)


def browser(service: Mapping[str, str]) -> ConnectedTool:
    """The tool `browser`; `service` has the `name` of a search service, or its URL, and a `key`."""
    room = asyncio.Semaphore(_MOST)
    return ConnectedTool(lambda headers, answer: BrowserRunner(BROWSER, room, service), CALL_S)


class SandboxRunner:
    """Implements service.tools.ToolRunner; what the calls made is gone with it."""

    def __init__(self, guest: Guest, room: asyncio.Semaphore) -> None:
        self._guest = guest
        self._room = room
        self.sandbox: Sandbox | None = None

    async def call(self, action: str, text: str) -> ToolResult:
        name = self._guest.name
        if len(asked := self._asked(action, text)) > _MOST_BYTES:
            return ToolResult(f"Error: that has over {_MOST_BYTES} bytes.", is_error=True)
        if self.sandbox is None:
            if self._room.locked():
                busy = f"Error: {name} is busy, {_MOST} answers use it; try again later."
                return ToolResult(busy, is_error=True)
            await self._room.acquire()
            self.sandbox = Sandbox(self._guest)
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

    def __init__(self, guest: Guest, room: asyncio.Semaphore, service: Mapping[str, str]) -> None:
        super().__init__(guest, room)
        self._service = service

    def _asked(self, action: str, text: str) -> bytes:
        head = json.dumps({"action": action, "service": dict(self._service)})
        return f"{head}\n{text}".encode("utf-8", "replace")

    def _told(self, found: str) -> ToolResult:
        return ToolResult(found, is_error=found.startswith("Error: "))
