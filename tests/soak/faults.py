"""What is done to a server in turn while its clients send, and when."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2

from tests.faults.small_disk import empty, fill
from tests.soak.server import HOST, WORKER, SoakServer
from tests.soak.traffic import TIMEOUT_S, Away, Place, Tally, poison, read_nothing

FIRST_S: Final = 15.0
GENTLE_SHARE: Final = 0.4  # of the run, its last: no process is killed, so that each can grow full
NUM_SLOW: Final = 8
STOPPED_S: Final = 10.0
LONG_S: Final = 20.0  # a disk is full, readers do not read
_AROUND_S: Final = 5.0  # a connection on a killed process may be told of that so late


@dataclass
class Faults:
    """The server of now, and what has been done to it and its like."""

    server: SoakServer
    tally: Tally
    place: Place
    every_s: float
    has_disk: bool
    done: list[tuple[float, str]] = field(default_factory=list)  # seconds from the start
    begun_s: float = field(default_factory=time.monotonic)
    exit_codes: list[int] = field(default_factory=list)  # of those that a roll ended
    starts_s: list[float] = field(default_factory=list)
    is_full: bool = False
    _number: int = 0

    async def do(self, seconds: float) -> None:
        """All in turn; only gentle ones near the end."""
        await asyncio.sleep(FIRST_S)
        gentle_from_s = (1 - GENTLE_SHARE) * seconds
        for name, is_gentle, act in self._turns():
            is_late = time.monotonic() - self.begun_s > gentle_from_s
            if is_late and not is_gentle:
                continue
            self.done.append((round(time.monotonic() - self.begun_s, 1), name))
            print(f"          {name}", flush=True)
            await act()
            await asyncio.sleep(self.every_s)

    def _turns(self) -> Iterator[tuple[str, bool, Callable[[], Awaitable[None]]]]:
        rounds = [
            ("an engine is killed", False, self._kill_engine),
            ("readers stop", True, self._read_slowly),
            ("a worker is killed", False, self._kill_worker),
            ("an engine is stopped", False, self._stop_engine),
            ("a worker is stopped", False, self._stop_worker),
        ]
        if self.has_disk:
            rounds.insert(3, ("the disk is full", True, self._fill_disk))
        if self.server.engine == "scripted":
            rounds.append(("an engine is poisoned", False, self._poison))
        while True:
            yield from [*rounds, ("the server is killed", False, self._kill_server)]
            yield from [*rounds, ("the server is rolled", False, self._roll)]

    async def _kill_engine(self) -> None:
        self._hurt(HOST, signal.SIGKILL)

    async def _stop_engine(self) -> None:
        self._hurt(HOST, signal.SIGSTOP)

    async def _kill_worker(self) -> None:
        now_s = time.monotonic()
        self.tally.away.append(Away("worker killed", now_s, now_s + _AROUND_S))
        self._hurt(WORKER, signal.SIGKILL)

    async def _stop_worker(self) -> None:
        number = self._hurt(WORKER, signal.SIGSTOP)
        try:
            await asyncio.sleep(STOPPED_S)
        finally:  # the soak may end meanwhile
            self.server.hurt(WORKER, number, signal.SIGCONT)

    def _hurt(self, module: str, number: signal.Signals) -> int:
        """One after the other of its kind."""
        self._number += 1
        self.server.hurt(module, self._number, number)
        return self._number

    async def _read_slowly(self) -> None:
        readers = (read_nothing(self.place, self.tally, LONG_S) for _ in range(NUM_SLOW))
        await asyncio.gather(*readers)

    async def _fill_disk(self) -> None:
        folder, self.is_full = self.server.folder, True
        filling = asyncio.create_task(asyncio.to_thread(fill, folder))
        try:
            await asyncio.shield(filling)
            await asyncio.sleep(LONG_S)
        finally:  # the soak may end meanwhile: what runs in the background waits for room
            await asyncio.wait((filling,))
            await asyncio.to_thread(empty, folder)
            self.is_full = False

    async def _poison(self) -> None:
        """The same request thrice; only the first may do harm."""
        word = random.Random(len(self.done)).randrange(10**9)
        async with httpx2.AsyncClient(base_url=self.place.url, timeout=TIMEOUT_S) as client:
            for _ in range(3):
                try:
                    await poison(client, self.tally, word)
                except httpx2.HTTPError as error:
                    self.tally.unanswered.append(f"poison: {type(error).__name__}: {error}")

    async def _roll(self) -> None:
        """As Kubernetes does: the new one gets new requests once it is ready, then the old ends."""
        old, new = self.server, await asyncio.to_thread(self.server.another)
        await self._begin(new)
        self.place.url, self.server = new.url, new
        await asyncio.sleep(1.0)
        self.exit_codes.append(await asyncio.to_thread(old.stop, signal.SIGTERM))

    async def _kill_server(self) -> None:
        """Its processes end with it; a service manager starts it again at once."""
        away = Away("server killed", time.monotonic(), float("inf"))
        self.tally.away.append(away)
        old = self.server
        await asyncio.to_thread(old.kill)
        self.server = await asyncio.to_thread(old.another, old.port)
        await self._begin(self.server)
        away.until_s = time.monotonic() + _AROUND_S

    async def _begin(self, server: SoakServer) -> None:
        self.starts_s.append(round(await asyncio.to_thread(server.wait_for_ready), 1))


def left_in(folder: Path) -> list[str]:
    """What a stopped server should have removed."""
    return sorted(path.name for path in (folder / "tmp").glob("harmonium-*"))


def shown(done: list[tuple[float, str]]) -> dict[str, Any]:
    """How often each was done."""
    names = [name for _, name in done]
    return {name: names.count(name) for name in dict.fromkeys(names)}
