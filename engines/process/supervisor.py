"""Supervision: starts a child process, restarts it when it dies, stops it; the engine's too."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from engines.errors import EngineStartError
from engines.factory import about
from engines.live_folder import LiveFolder
from engines.process.child import ChildError, ChildProcess, Command, Watchdog
from engines.process.client import EngineClient
from engines.spec import EngineSpec

log = logging.getLogger(__name__)

_NAME = "the engine process"
_LONGEST_SOCKET_NAME = len("/rpc_test_") + 36  # TensorRT-LLM's; vLLM's are bare UUIDs


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How long to wait before each restart, and when to take a hang for a death."""

    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    reset_after_s: float = 60.0  # a child that lived so long starts again at first_delay_s
    start_timeout_s: float = 300.0  # before it is ready: importing is slow on a busy machine
    hang_timeout_s: float = 60.0  # without a sign of life after that
    step_timeout_s: float = 120.0  # with requests running and no event, token or step

    def next_delay_s(self, last_delay_s: float | None, lived_s: float) -> float:
        """Seconds to wait before the next start; doubles from one short life to the next."""
        if last_delay_s is None or lived_s >= self.reset_after_s:
            return self.first_delay_s
        return min(2 * last_delay_s, self.max_delay_s)

    def watchdog(self) -> Watchdog:
        return Watchdog(self.hang_timeout_s, self.step_timeout_s, self.start_timeout_s)


def _no_op() -> None:
    """Default callback."""


class ChildSupervisor:
    """Keeps one child process running; `command` says for each start how.

    The first start must succeed; after it every death is followed by a restart, for ever.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Command],
        policy: RestartPolicy,
        on_change: Callable[[], None] = _no_op,
        on_death: Callable[[], None] = _no_op,
    ) -> None:
        """`on_change`: called whenever `reason` or `num_restarts` has changed."""
        self._name = name
        self._command = command
        self._policy = policy
        self._on_change = on_change
        self._on_death = on_death
        self._child: ChildProcess | None = None
        self._watching: asyncio.Task[None] | None = None
        self._reason: str | None = f"{name} has not been started"
        self._num_restarts = 0
        self._step = ""

    @property
    def step(self) -> str:
        """The starting child's current step, in its own words; empty if it reported none."""
        return self._step

    @property
    def reason(self) -> str | None:
        """Why there is no child that is ready, or None while there is one."""
        return self._reason

    @property
    def num_restarts(self) -> int:
        return self._num_restarts

    @property
    def pid(self) -> int | None:
        """The process id of the child, or None while none is ready."""
        return self._child.pid if self._child is not None and self._reason is None else None

    async def start(self) -> None:
        """Return when the child is ready; raises ChildError in its own words."""
        try:
            child = await self._launch()
        except BaseException:
            await self.stop(drain_timeout_s=0.0, grace_s=0.0)
            raise
        self._watching = asyncio.create_task(self._watch(child), name=f"supervisor of {self._name}")

    def tell(self, words: bytes) -> None:
        if self._child is not None:
            self._child.tell(words)

    def signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.signal(number)

    async def stop(self, drain_timeout_s: float, grace_s: float) -> None:
        """End the child: let it drain, then abort, then kill; may be called twice."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        self._say(f"{self._name} was stopped")
        child = self._child
        if child is not None:
            await child.stop(drain_timeout_s, grace_s)
            self._child = None

    def _say(self, reason: str | None) -> None:
        self._reason, self._step = reason, ""
        self._on_change()

    def _on_step(self, step: str) -> None:
        if step != self._step:
            self._step = step
            self._on_change()

    async def _launch(self) -> ChildProcess:
        starting = f"{self._name} is starting"
        self._say(f"{starting} again: {self._reason}" if self._num_restarts else starting)
        self._child = child = await ChildProcess.spawn(self._command(), self._policy.watchdog())
        child.on_step = self._on_step
        await child.ready()
        self._say(None)
        again = " again" if self._num_restarts else ""
        log.info("%s is ready%s, process id %d", self._name, again, child.pid)
        return child

    async def _watch(self, child: ChildProcess) -> None:
        delay_s = None
        while True:
            self._say(await child.ended())
            self._on_death()
            delay_s = self._policy.next_delay_s(delay_s, child.age_s)
            child, delay_s = await self._restart(delay_s)

    async def _restart(self, delay_s: float) -> tuple[ChildProcess, float]:
        """Try until a start succeeds; return the child and the delay before that start."""
        while True:
            log.error("%s; restarting it in %.1f s", self._reason, delay_s)
            await asyncio.sleep(delay_s)
            self._num_restarts += 1
            try:
                return await self._launch(), delay_s
            except ChildError as error:
                self._say(str(error))
            delay_s = self._policy.next_delay_s(delay_s, lived_s=0.0)


class EngineSupervisor:
    """Keeps one engine process running; its clients say why it is away while it is."""

    def __init__(
        self,
        spec: EngineSpec,
        policy: RestartPolicy | None = None,
        environment: Mapping[str, str] | None = None,
        on_change: Callable[[], None] = _no_op,
        python: Path | None = None,
    ) -> None:
        """`environment`: the engine process's whole environment; None for the same as ours.

        `python`: what runs it; None for the same as ours.

        `on_change`: called whenever `reason` or `num_restarts` has changed.
        """
        self._spec = spec
        self._environment = environment
        self._python = sys.executable if python is None else str(python)
        self._folder = LiveFolder()
        self._temporary = self._folder.path / "tmp"  # of one life of the process
        self._supervisor = ChildSupervisor(
            _NAME, self._command, policy or RestartPolicy(), on_change
        )

    @property
    def address(self) -> str:
        """Where clients of any process of this user reach the engine."""
        return f"ipc://{self._folder.path / 'engine.sock'}"

    @property
    def reason(self) -> str | None:
        return self._supervisor.reason

    @property
    def step(self) -> str:
        return self._supervisor.step

    @property
    def num_restarts(self) -> int:
        return self._supervisor.num_restarts

    @property
    def pid(self) -> int | None:
        return self._supervisor.pid

    def client(self) -> EngineClient:
        return EngineClient(self.address, explain=lambda: self.reason)

    async def start(self) -> None:
        """Return when the engine is ready; raises EngineStartError in the engine's own words."""
        self._make_folder()
        try:
            await self._supervisor.start()
        except BaseException as error:
            self._folder.remove()
            if isinstance(error, ChildError):
                raise EngineStartError(str(error)) from error
            raise

    async def stop(self, drain_timeout_s: float = 30.0, grace_s: float = 5.0) -> None:
        await self._supervisor.stop(drain_timeout_s, grace_s)
        self._folder.remove()

    def _command(self) -> Command:
        level = logging.getLevelName(logging.getLogger("engines").getEffectiveLevel())
        return Command(
            name=_NAME,
            arguments=(
                *("-m", "engines.process.host"),
                *("--address", self.address, "--log-level", level),
            ),
            first_words=lambda: msgspec.json.encode(self._spec) + b"\n",
            environment=self._with_temporary_files_apart(),
            python=self._python,
            is_log_forwarded=True,
            log_line=about(self._spec.engine).log_line,
        )

    def _with_temporary_files_apart(self) -> Mapping[str, str] | None:
        """Return the environment with a folder of its own for what a process that is killed leaves.

        vLLM and TensorRT-LLM make their sockets there too, where no other user may connect.
        """
        shutil.rmtree(self._temporary, ignore_errors=True)
        room = zmq.IPC_PATH_MAX_LEN - len(os.fsencode(self._temporary))
        if self._environment is None or room < _LONGEST_SOCKET_NAME:
            return self._environment
        try:
            self._temporary.mkdir(mode=0o700, parents=True)
        except OSError as error:  # the disk is full: the engine shares the folder with others
            log.warning("The engine gets no folder of its own for temporary files: %s", error)
            return self._environment
        compiled = f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}"  # for later starts
        # Not as the first variable: setproctitle, by which vLLM names its processes, finds the
        # title's place by that one, and vLLM sets this one again.
        kept = {"TORCHINDUCTOR_CACHE_DIR": compiled, **self._environment}
        return {**self._environment, **kept, "TMPDIR": str(self._temporary)}

    def _make_folder(self) -> None:
        path = self.address.removeprefix("ipc://")
        if len(path.encode()) > zmq.IPC_PATH_MAX_LEN:
            raise EngineStartError(
                f"the engine's socket path {path} is longer than {zmq.IPC_PATH_MAX_LEN} bytes; "
                "set TMPDIR to a shorter folder"
            )
        try:
            self._folder.make()  # only this user's processes may connect
        except OSError as error:
            raise EngineStartError(
                f"no folder for the engine's socket: {error}; set TMPDIR to a writable folder"
            ) from error
