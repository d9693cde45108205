"""A deployment of Dynamo behind our queue: the service sees one more engine.

The workers are replicas that may die. An answer continues at another worker, and a request that
kills its worker is convicted at the second death, by the same rules as for engine processes
(engines/recovery).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from importlib.metadata import version

import msgspec

from engines import start_steps
from engines.base import EngineInfo, EngineRequest, EngineStats, Receive, TokenEvent
from engines.errors import EngineDead, EngineStartError
from engines.live_folder import LiveFolder
from engines.process.wire import Submit
from engines.queueing.admission import QueuedEngine
from engines.queueing.forwarding import ForwardedRun, ForwardingRunner
from engines.recovery.crash_records import CrashRecords
from engines.recovery.guarded import GuardedEngine
from engines.spec import EngineSpec, check_understood
from engines.validation import check_capabilities, check_request
from parts.dynamo.network.deployment import Deployment
from parts.dynamo.network.runtime import DEFAULT_ENDPOINT, Discovery


class DynamoOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a spec; where etcd is, Dynamo reads in its own variables."""

    endpoint: str = DEFAULT_ENDPOINT
    discovery: Discovery = "etcd"
    max_num_waiting: int | None = None
    max_model_len: int | None = None  # None: the workers'


class DynamoEngine(QueuedEngine[ForwardedRun]):
    """A deployment behind the queue, whose capacity follows the workers."""

    def __init__(self, options: DynamoOptions) -> None:
        super().__init__(DynamoRunner(options, self.resize), options.max_num_waiting)

    @classmethod
    def from_spec(cls, spec: EngineSpec) -> DynamoEngine:
        """Make the engine of a spec; raises EngineStartError for what it does not understand."""
        check_understood(spec, ("limits",))
        try:
            return cls(msgspec.convert({**spec.limits, **spec.options}, DynamoOptions))
        except msgspec.ValidationError as error:
            known = ", ".join(DynamoOptions.__struct_fields__)
            raise EngineStartError(f"engine 'dynamo': {error} (known options: {known})") from None


class DynamoRunner(ForwardingRunner):
    """Implements engines.base.Runner."""

    def __init__(self, options: DynamoOptions, on_change: Callable[[EngineInfo], None]) -> None:
        """`on_change`: told what the workers serve when one has come or gone."""
        super().__init__()
        self._options = options
        self._on_change = on_change
        self._folder = LiveFolder()
        self._deployment = Deployment(options.endpoint, options.discovery, self._changed)
        records = CrashRecords(self._folder.path / "suspects")
        self._engine = GuardedEngine(self._deployment, records, restart_timeout_s=0.0)
        self._is_running = False

    @property
    def info(self) -> EngineInfo:
        """What the workers serve together; raises EngineDead before start()."""
        info = self._deployment.info
        most = self._options.max_model_len or info.max_model_len
        return replace(
            info,
            engine="dynamo",
            version=f"{version('ai-dynamo-runtime')} ({info.engine} {info.version})",
            max_model_len=min(most, info.max_model_len),
        )

    async def start(self) -> None:
        """Return when a worker serves; raises EngineStartError where Dynamo cannot be used."""
        start_steps.begin(f"waiting for a worker of Dynamo at {self._options.endpoint}")
        self._folder.make()
        await self._deployment.start()
        self._is_running = True

    async def prepare(self, request: EngineRequest) -> ForwardedRun:
        """Check the request; its grammar is compiled by the worker."""
        self._check_running()
        info = self.info
        check_request(request, info.vocab_size, info.max_model_len)
        check_capabilities(request, info.capabilities)
        Submit.of(0, request)  # a grammar that is too deep is refused before anything runs
        return ForwardedRun(request)

    def begin(self, run: ForwardedRun, receive: Receive, arrived_s: float) -> None:
        self._check_running()
        super().begin(run, receive, arrived_s)

    async def stats(self) -> EngineStats:
        """The counts of all workers, for every front together."""
        self._check_running()
        return await self._deployment.stats()

    async def check_health(self) -> None:
        """Raise EngineDead before start(), after stop(), and without a worker for a while."""
        self._check_running()
        if self._deployment.is_dead:
            raise EngineDead(f"no worker of Dynamo serves {self._options.endpoint}")

    async def stop(self) -> None:
        self._is_running = False
        await self._end_runs()
        await self._engine.stop()
        self._folder.remove()

    def _events(self, request: EngineRequest) -> AsyncGenerator[TokenEvent, None]:
        return self._engine.generate(request)

    def _changed(self) -> None:
        if self._is_running:
            self._on_change(self.info)

    def _check_running(self) -> None:
        if not self._is_running:
            raise EngineDead("the engine is not running")
