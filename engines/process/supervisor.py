"""Keeps one engine process running: starts it, restarts it when it dies, stops it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import zmq

from engines.errors import EngineStartError
from engines.process.child import EngineProcess
from engines.process.client import EngineClient
from engines.process.watchdog import Watchdog
from engines.spec import EngineSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How long to wait before each restart, and when to take a hang for a death."""

    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    reset_after_s: float = 60.0  # an engine that lived so long starts again at first_delay_s
    hang_timeout_s: float = 60.0  # without a sign of life
    step_timeout_s: float = 120.0  # with requests running and no event, token or step

    def next_delay_s(self, last_delay_s: float | None, lived_s: float) -> float:
        """The back-off doubles from one short life to the next."""
        if last_delay_s is None or lived_s >= self.reset_after_s:
            return self.first_delay_s
        return min(2 * last_delay_s, self.max_delay_s)

    def watchdog(self) -> Watchdog:
        """A watch over one life of the process."""
        return Watchdog(self.hang_timeout_s, self.step_timeout_s)


class EngineSupervisor:
    """Owns the engine process and the private folder of its socket.

    The first start must succeed; after it every death is followed by a restart, for ever,
    and clients made by client() say meanwhile why the engine is away.
    """

    def __init__(
        self,
        spec: EngineSpec,
        policy: RestartPolicy | None = None,
        environment: Mapping[str, str] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """`environment`: the engine process's whole environment; None for the same as ours.

        `on_change`: called whenever `reason` or `num_restarts` has changed.
        """
        self._spec = spec
        self._environment = environment
        self._policy = policy or RestartPolicy()
        self._folder = Path(tempfile.gettempdir()) / f"harmonium-{secrets.token_hex(8)}"
        self._process: EngineProcess | None = None
        self._watching: asyncio.Task[None] | None = None
        self._reason: str | None = "the engine process has not been started"
        self._num_restarts = 0
        self._on_change = on_change

    @property
    def address(self) -> str:
        """Where clients of any process of this user reach the engine."""
        return f"ipc://{self._folder / 'engine.sock'}"

    @property
    def reason(self) -> str | None:
        """Why there is no engine now, or None while one is ready."""
        return self._reason

    @property
    def num_restarts(self) -> int:
        """How often the engine was started again."""
        return self._num_restarts

    @property
    def pid(self) -> int | None:
        """The process id of the engine process, or None while there is none."""
        return self._process.pid if self._process is not None and self._reason is None else None

    def client(self) -> EngineClient:
        """Make a client of this engine, yet to be started."""
        return EngineClient(self.address, explain=lambda: self._reason)

    async def start(self) -> None:
        """Return when the engine is ready; raises EngineStartError in the engine's own words."""
        try:
            self._make_folder()
            process = await self._launch()
        except BaseException:
            await self.stop(drain_timeout_s=0.0, grace_s=0.0)
            raise
        self._watching = asyncio.create_task(self._watch(process), name="engine-supervisor")

    async def stop(self, drain_timeout_s: float = 30.0, grace_s: float = 5.0) -> None:
        """End the engine: let it drain, then abort, then kill; may be called twice."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        process, self._process = self._process, None
        self._say("the engine was stopped")
        if process is not None:
            await process.stop(drain_timeout_s, grace_s)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _say(self, reason: str | None) -> None:
        self._reason = reason
        if self._on_change is not None:
            self._on_change()

    def _make_folder(self) -> None:
        path = self.address.removeprefix("ipc://")
        if len(path.encode()) > zmq.IPC_PATH_MAX_LEN:
            raise EngineStartError(
                f"the engine's socket path {path} is longer than {zmq.IPC_PATH_MAX_LEN} bytes; "
                "set TMPDIR to a shorter folder"
            )
        try:
            self._folder.mkdir(mode=0o700)  # only this user's processes may connect
        except OSError as error:
            raise EngineStartError(
                f"no folder for the engine's socket: {error}; set TMPDIR to a writable folder"
            ) from error

    async def _launch(self) -> EngineProcess:
        self._say("the engine is starting")
        try:
            self._process = process = await EngineProcess.spawn(
                self._spec, self.address, self._policy.watchdog(), self._environment
            )
        except OSError as error:
            raise EngineStartError(f"the engine process cannot be started: {error}") from error
        await process.ready()
        self._say(None)
        log.info("The engine runs as process %d", process.pid)
        return process

    async def _watch(self, process: EngineProcess) -> None:
        delay_s = None
        while True:
            self._say(await process.ended())
            delay_s = self._policy.next_delay_s(delay_s, process.age_s)
            process, delay_s = await self._restart(delay_s)

    async def _restart(self, delay_s: float) -> tuple[EngineProcess, float]:
        """Try until a start succeeds; return the process and the delay before that start."""
        while True:
            log.error("%s; it is started again in %.1f s", self._reason, delay_s)
            await asyncio.sleep(delay_s)
            self._num_restarts += 1
            try:
                return await self._launch(), delay_s
            except EngineStartError as error:
                self._say(str(error))
            delay_s = self._policy.next_delay_s(delay_s, lived_s=0.0)
