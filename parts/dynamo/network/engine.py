"""A deployment of Dynamo behind our queue: the service sees one more engine.

The workers are replicas that may die. An answer continues at another worker, and a request that
kills its worker is convicted at the second death, by the same rules as for engine processes
(engines/recovery).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from importlib.metadata import version

import msgspec

from engines import start_steps
from engines.base import EngineInfo, EngineRequest, EngineStats, Outcome, Receive
from engines.errors import EngineDead, EngineError, EngineStartError, RequestFailed
from engines.live_folder import LiveFolder
from engines.process.wire import Submit
from engines.queueing.admission import QueuedEngine
from engines.recovery.crash_records import CrashRecords
from engines.recovery.guarded import GuardedEngine
from engines.spec import EngineSpec, check_understood
from engines.validation import check_capabilities, check_request
from parts.dynamo.network.deployment import Deployment
from parts.dynamo.network.runtime import DEFAULT_ENDPOINT, Discovery

log = logging.getLogger(__name__)


class DynamoOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a spec; where etcd is, Dynamo reads in its own variables."""

    endpoint: str = DEFAULT_ENDPOINT
    discovery: Discovery = "etcd"
    max_num_waiting: int | None = None
    max_model_len: int | None = None  # None: the workers'


@dataclass(eq=False, slots=True)
class Run:
    """One request, and the task that follows it once begun."""

    request: EngineRequest
    receive: Receive | None = None
    following: asyncio.Task[None] | None = None


class DynamoEngine(QueuedEngine[Run]):
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


class DynamoRunner:
    """Implements engines.base.Runner."""

    def __init__(self, options: DynamoOptions, on_change: Callable[[EngineInfo], None]) -> None:
        """`on_change`: told what the workers serve when one has come or gone."""
        self._options = options
        self._on_change = on_change
        self._folder = LiveFolder()
        self._deployment = Deployment(options.endpoint, options.discovery, self._changed)
        records = CrashRecords(self._folder.path / "suspects")
        self._engine = GuardedEngine(self._deployment, records, restart_timeout_s=0.0)
        self._runs: set[Run] = set()
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

    async def prepare(self, request: EngineRequest) -> Run:
        """Check the request; its grammar is compiled by the worker."""
        self._check_running()
        info = self.info
        check_request(request, info.vocab_size, info.max_model_len)
        check_capabilities(request, info.capabilities)
        Submit.of(0, request)  # a grammar that is too deep is refused before anything runs
        return Run(request)

    def num_cached_tokens(self, run: Run) -> int | None:
        """Return None: what the workers have cached is not known here."""
        return None

    def begin(self, run: Run, receive: Receive, arrived_s: float) -> None:
        self._check_running()
        run.receive = receive
        self._runs.add(run)
        waited_s = time.monotonic() - arrived_s
        run.following = asyncio.create_task(self._follow(run, waited_s), name="dynamo-request")

    def abort(self, run: Run) -> None:
        """End a run; its worker learns of it at once."""
        run.receive = None
        self._runs.discard(run)
        if run.following is not None:
            run.following.cancel()

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
        following = [run.following for run in self._runs if run.following is not None]
        for run in list(self._runs):
            receive = run.receive
            self.abort(run)
            if receive is not None:
                receive(EngineDead("the engine has been stopped"))
        await asyncio.gather(*following, return_exceptions=True)
        await self._engine.stop()
        self._folder.remove()

    async def _follow(self, run: Run, waited_s: float) -> None:
        try:
            async with aclosing(self._engine.generate(run.request)) as events:
                async for event in events:
                    event = replace(event, queued_s=event.queued_s + waited_s)
                    self._give(run, event, is_last=event.finish_reason is not None)
        except EngineError as error:
            self._give(run, error, is_last=True)
        except Exception as error:
            log.exception("Request %s failed", run.request.request_id)
            words = f"{type(error).__name__}: {error}"
            self._give(run, RequestFailed(f"Dynamo failed in this request: {words}"), is_last=True)

    def _give(self, run: Run, outcome: Outcome, *, is_last: bool) -> None:
        if is_last:
            self._runs.discard(run)
        if run.receive is not None:
            run.receive(outcome)

    def _changed(self) -> None:
        if self._is_running:
            self._on_change(self.info)

    def _check_running(self) -> None:
        if not self._is_running:
            raise EngineDead("the engine is not running")
