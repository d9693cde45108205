"""Runs the sandboxes of one tool beside a server: `python -m parts.sandbox.host python FOLDER`.

It answers at the socket FOLDER/python.sock. In a container of its own it has none of the server's
keys, weights and caches, and the server needs no user namespaces. A connection has one sandbox,
which ends with it. A request is a line with its length and then its bytes; so is the answer, behind
`=`, or behind `!` where the sandbox is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from asyncio import StreamReader, StreamWriter
from pathlib import Path
from typing import Final

from parts.sandbox.jail import Guest, fault
from parts.sandbox.runners import GUESTS, MOST, MOST_BYTES
from parts.sandbox.sandbox import Sandbox, SandboxBeside, socket_of
from service.tools import ToolLost

_LOST: Final = SandboxBeside.LOST
_TOLD: Final = SandboxBeside.TOLD


class Host:
    """The sandboxes of one tool."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._num_open = 0

    async def connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one connection until the server leaves it."""
        self._num_open += 1
        sandbox = Sandbox(self._guest)
        try:
            with contextlib.suppress(ConnectionError, EOFError, ValueError):
                while head := await reader.readline():
                    asked = await reader.readexactly(min(int(head), MOST_BYTES))
                    kind, told = await self._answer(sandbox, asked, reader)
                    raw = told.encode()
                    writer.write(b"%s%d\n%s" % (kind, len(raw), raw))
                    await writer.drain()
        finally:
            self._num_open -= 1
            writer.close()
            await sandbox.close()

    async def _answer(
        self, sandbox: Sandbox, asked: bytes, reader: StreamReader
    ) -> tuple[bytes, str]:
        """Raises EOFError where the server gave the call up."""
        if self._num_open > MOST:
            return _LOST, f"{self._guest.name} is busy, {MOST} answers use it"
        asking = asyncio.create_task(sandbox.ask(asked))
        leaving = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise EOFError
            return _TOLD, asking.result()
        except ToolLost as error:
            return _LOST, str(error)
        finally:
            asking.cancel()
            leaving.cancel()
            await asyncio.wait((asking, leaving))


async def serve(guest: Guest, folder: Path) -> None:
    """Serve until SIGTERM."""
    path, ended = socket_of(guest, folder), asyncio.Event()
    path.unlink(missing_ok=True)
    await asyncio.start_unix_server(Host(guest).connected, path)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    print(f"{guest.name} is ready at {path}", flush=True)
    await ended.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m parts.sandbox.host")
    parser.add_argument("tool", choices=[*GUESTS])
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    guest = GUESTS[given.tool]
    if (reason := fault(guest)) is not None:
        raise SystemExit(f"{guest.name} cannot work here: {reason}")
    asyncio.run(serve(guest, given.folder))


if __name__ == "__main__":
    main()
