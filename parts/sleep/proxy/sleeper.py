"""The engine's process: ended when it is idle, started again for the next request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from engines import start_steps
from engines.base import EngineInfo, EngineStats
from engines.errors import EngineDead, EngineStartError, Overloaded
from engines.fleet import sum_of
from engines.process.client import EngineClient
from engines.process.supervisor import EngineSupervisor, RestartPolicy
from engines.spec import EngineSpec

NEVER_S: Final = 1e6
_TRIES: Final = 3  # of a start for waiting requests
_PAUSE_S: Final = 1.0
_GRACE_S: Final = 5.0
_LOOK_S: Final = 1.0  # between two looks at an engine that is not quite idle
_RETRY_S: Final = 5

log = logging.getLogger("engines.sleep")


class Sleeper:
    """Owns the engine's process. All methods belong to one event loop."""

    def __init__(
        self, spec: EngineSpec, policy: RestartPolicy, idle_s: float, pause_s: float = _PAUSE_S
    ) -> None:
        """`pause_s`: after a start that failed; doubled each time."""
        self.is_busy: Callable[[], bool] = lambda: False  # whether a request needs the engine
        self.failure: str | None = None  # of the last start, if it failed
        self._spec = spec
        self._policy = policy
        self._idle_s = idle_s
        self._pause_s = pause_s
        self._supervisor: EngineSupervisor | None = None
        self._client: EngineClient | None = None  # None: asleep, or on the way
        self._info: EngineInfo | None = None
        self._turn = asyncio.Lock()  # one start or end at a time
        self._waking: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._used_s = time.monotonic()
        self._num_held = 0
        self._ended = EngineStats()  # the counts of processes that are gone
        self._num_sleeps = self._num_wakes = 0
        self._wake_s = 0.0

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineDead("the engine has not been started")
        return self._info

    @property
    def is_awake(self) -> bool:
        return self._client is not None

    @property
    def client(self) -> EngineClient:
        """The engine; raises EngineDead while it sleeps."""
        if self._client is None:
            raise EngineDead("the engine sleeps")
        return self._client

    async def start(self) -> None:
        """Start the engine for the first time; raises EngineStartError."""
        await self._launch()
        self.touch()
        self._watching = asyncio.create_task(self._watch(), name="sleeper")

    def touch(self) -> None:
        """Note that the engine is used: it sleeps only after a time without that."""
        self._used_s = time.monotonic()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let the engine not fall asleep inside the block."""
        self._num_held += 1
        try:
            yield
        finally:
            self._num_held -= 1
            self.touch()

    async def awake(self) -> None:
        """Return when the engine runs; all who wait share one start. Raises Overloaded if it fails.

        A caller that leaves does not end the start.
        """
        while self._client is None:
            if self._waking is None:
                self._waking = asyncio.create_task(self._wake(), name="waking")
                self._waking.add_done_callback(self._forget)
            await asyncio.shield(self._waking)

    async def sleep(self) -> bool:
        """End the engine's process, unless it is used; whether it sleeps now."""
        async with self._turn:
            if self._client is None:
                return True
            with contextlib.suppress(EngineDead):
                stats = await self._client.stats()
                if self._num_held or self.is_busy():
                    return False
                self._woken.clear()
                client, self._client = self._client, None  # from here on requests wait
                self._ended = _without_levels(sum_of([self._ended, stats]))
                await self._end(client)
                self._num_sleeps += 1
                log.info("The engine sleeps: its process has ended. A request starts it again.")
                return True
        return False

    async def stats(self) -> EngineStats:
        """The counts of all its processes."""
        found = [self._ended]
        if self._client is not None:
            found.append(await self._client.stats())
        counted = {
            "sleeps": self._num_sleeps,
            "wakes": self._num_wakes,
            "wake_seconds": self._wake_s,
        }
        is_asleep = self._client is None and not self._turn.locked()  # and not on the way
        stats, levels = sum_of(found), {"asleep": float(is_asleep)}
        return replace(stats, extras={**stats.extras, **counted}, levels={**stats.levels, **levels})

    async def check_health(self) -> None:
        """Raise EngineDead where the engine died; one that sleeps is well."""
        supervisor = self._supervisor
        if self._client is not None and supervisor is not None and supervisor.reason is not None:
            raise EngineDead(supervisor.reason)

    async def stop(self) -> None:
        tasks = [task for task in (self._watching, self._waking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client, self._client = self._client, None
        await self._end(client)

    async def _watch(self) -> None:
        while True:
            if self._client is None:
                await self._woken.wait()
            left_s = self._used_s + self._idle_s - time.monotonic()
            if left_s > 0 or self.is_busy():
                await asyncio.sleep(max(left_s, min(_LOOK_S, self._idle_s)))
            elif not await self.sleep():
                await asyncio.sleep(min(_LOOK_S, self._idle_s))

    async def _wake(self) -> None:
        async with self._turn:
            if self._client is not None:
                return
            began_s = time.monotonic()
            log.info("The engine wakes for a request.")
            for number in range(1, _TRIES + 1):
                try:
                    await self._launch()
                    break
                except EngineStartError as error:
                    self.failure = f"the engine sleeps and cannot be started again: {error}"
                    log.error("%s (try %d of %d)", self.failure, number, _TRIES)
                    if number == _TRIES:
                        raise Overloaded(f"{self.failure}; try again", retry_s=_RETRY_S) from error
                await asyncio.sleep(self._pause_s * 2 ** (number - 1))
            took_s = time.monotonic() - began_s
            self._num_wakes += 1
            self._wake_s += took_s
            log.info(
                "The engine is awake after %.1f s; requests that waited: %d.",
                took_s,
                self._num_held,
            )

    async def _launch(self) -> None:
        supervisor = EngineSupervisor(self._spec, self._policy, on_change=self._on_change)
        self._supervisor = supervisor
        await supervisor.start()
        client = supervisor.client()
        try:
            await client.start()
        except BaseException:
            await supervisor.stop(0.0, _GRACE_S)
            raise
        self._info = client.info
        self.failure = None
        self._client = client
        self._woken.set()
        self.touch()

    async def _end(self, client: EngineClient | None) -> None:
        supervisor, self._supervisor = self._supervisor, None
        if client is not None:
            await client.stop()
        if supervisor is not None:
            await supervisor.stop(_GRACE_S, _GRACE_S)

    def _on_change(self) -> None:
        if self._supervisor is not None and self._supervisor.step:
            start_steps.begin(self._supervisor.step)

    def _forget(self, waking: asyncio.Task[None]) -> None:
        self._waking = None
        if not waking.cancelled():
            waking.exception()  # those who waited have it


def _without_levels(stats: EngineStats) -> EngineStats:
    """The counts, without what an engine holds while it lives."""
    return replace(
        stats, num_running=0, num_waiting=0, num_kv_blocks=0, num_free_kv_blocks=0, levels={}
    )
