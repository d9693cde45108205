"""The engine process, the private folder of its socket, and the clients of both."""

from __future__ import annotations

import logging
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import zmq

from engines.errors import EngineStartError
from engines.process.child import ChildError, Command
from engines.process.client import EngineClient
from engines.process.keeper import Keeper, RestartPolicy, nothing
from engines.spec import EngineSpec

_NAME = "the engine process"


class EngineSupervisor:
    """Keeps an engine process, whose clients say while it is away why it is."""

    def __init__(
        self,
        spec: EngineSpec,
        policy: RestartPolicy | None = None,
        environment: Mapping[str, str] | None = None,
        on_change: Callable[[], None] = nothing,
    ) -> None:
        """`environment`: the engine process's whole environment; None for the same as ours.

        `on_change`: called whenever `reason` or `num_restarts` has changed.
        """
        self._spec = spec
        self._environment = environment
        self._folder = Path(tempfile.gettempdir()) / f"harmonium-{secrets.token_hex(8)}"
        self._keeper = Keeper(_NAME, self._command, policy or RestartPolicy(), on_change)

    @property
    def address(self) -> str:
        """Where clients of any process of this user reach the engine."""
        return f"ipc://{self._folder / 'engine.sock'}"

    @property
    def reason(self) -> str | None:
        """Why there is no engine now, or None while one is ready."""
        return self._keeper.reason

    @property
    def num_restarts(self) -> int:
        """How often the engine was started again."""
        return self._keeper.num_restarts

    @property
    def pid(self) -> int | None:
        """The process id of the engine process, or None while there is none."""
        return self._keeper.pid

    def client(self) -> EngineClient:
        """Make a client of this engine, yet to be started."""
        return EngineClient(self.address, explain=lambda: self.reason)

    async def start(self) -> None:
        """Return when the engine is ready; raises EngineStartError in the engine's own words."""
        self._make_folder()
        try:
            await self._keeper.start()
        except BaseException as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            if isinstance(error, ChildError):
                raise EngineStartError(str(error)) from error
            raise

    async def stop(self, drain_timeout_s: float = 30.0, grace_s: float = 5.0) -> None:
        """End the engine: let it drain, then abort, then kill; may be called twice."""
        await self._keeper.stop(drain_timeout_s, grace_s)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _command(self) -> Command:
        level = logging.getLevelName(logging.getLogger("engines").getEffectiveLevel())
        return Command(
            name=_NAME,
            arguments=(
                *("-m", "engines.process.host"),
                *("--address", self.address, "--log-level", level),
            ),
            first_words=lambda: msgspec.json.encode(self._spec) + b"\n",
            environment=self._environment,
            is_log_forwarded=True,
        )

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
