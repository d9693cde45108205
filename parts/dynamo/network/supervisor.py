"""A worker of Dynamo from its parent's side: an engine process, and the process that serves it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from engines.errors import EngineStartError
from engines.process.child import ChildError, Command
from engines.process.supervisor import ChildSupervisor, EngineSupervisor, RestartPolicy
from parts.dynamo.handover.spec import KvHandover
from parts.dynamo.network.log_lines import as_ours
from parts.dynamo.network.runtime import Discovery
from parts.dynamo.network.worker import WorkerSpec

_NAME: Final = "the Dynamo worker"
_GRACE_S: Final = 5.0


def prefill_endpoint(endpoint: str) -> str:
    """Where the workers are that compute prompts for those of an endpoint."""
    return f"{endpoint}-prefill"


class WorkerSupervisor:
    """Keeps an engine and its worker running: a worker ends with its engine, and both start again.

    The worker waits for the engine, so that discovery knows only workers that serve.
    """

    def __init__(
        self,
        engine: EngineSupervisor,
        endpoint: str,
        discovery: Discovery,
        *,
        handover: KvHandover | None = None,
        policy: RestartPolicy | None = None,
        environment: Mapping[str, str] | None = None,
        python: Path | None = None,
    ) -> None:
        """`python` has Dynamo's library; `environment` is the worker process's whole one.

        `handover`: that of the engine's spec. Workers that prefill have an endpoint of their own,
        so that no front sends them requests.
        """
        self.engine = engine
        role = None if handover is None else handover.role
        self._spec = WorkerSpec(
            engine.address,
            prefill_endpoint(endpoint) if role == "prefill" else endpoint,
            discovery,
            prefill_endpoint=prefill_endpoint(endpoint) if role == "decode" else None,
            handover=None if handover is None else handover.endpoint,
        )
        self._environment = environment
        self._python = sys.executable if python is None else str(python)
        self._worker = ChildSupervisor(_NAME, self._command, policy or RestartPolicy())

    @property
    def pid(self) -> int | None:
        """The process id of the worker, or None while none is ready."""
        return self._worker.pid

    async def start(self) -> None:
        """Return when discovery has the worker; raises EngineStartError."""
        await self.engine.start()
        try:
            await self._worker.start()
        except BaseException as error:
            await self.engine.stop(0.0, _GRACE_S)
            if isinstance(error, ChildError):
                raise EngineStartError(str(error)) from error
            raise

    async def stop(self, drain_timeout_s: float) -> None:
        """Withdraw the worker, let running answers end for so long, and stop both."""
        await self._worker.stop(drain_timeout_s, _GRACE_S)
        await self.engine.stop(_GRACE_S, _GRACE_S)

    def _command(self) -> Command:
        return Command(
            name=_NAME,
            arguments=("-m", "parts.dynamo.network.worker"),
            first_words=lambda: msgspec.json.encode(self._spec) + b"\n",
            environment=self._environment,
            python=self._python,
            is_log_forwarded=True,
            log_line=as_ours,
        )
