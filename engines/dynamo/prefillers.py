"""The workers that compute prompts for one that decodes."""

from __future__ import annotations

from engines.base import EngineRequest
from engines.dynamo.deployment import Deployment
from engines.dynamo.runtime import Discovery
from engines.dynamo.worker_client import WorkerClient
from engines.errors import EngineDead
from engines.fleet import Replica


class Turn:
    """One prompt at one worker, which has it to do until `end`."""

    def __init__(self, replica: Replica[WorkerClient], endpoint: str) -> None:
        """`endpoint`: where its engine hands K/V over."""
        self.endpoint = endpoint
        self._replica: Replica[WorkerClient] | None = replica
        replica.num_running += 1

    def end(self) -> None:
        """The prompt is computed; may be called twice."""
        if self._replica is not None:
            self._replica.num_running -= 1
            self._replica = None


class Prefillers:
    """Follows these workers, and shares prompts out as a front does with requests."""

    def __init__(self, endpoint: str, discovery: Discovery) -> None:
        self._workers = Deployment(endpoint, discovery, lambda: None, patience_s=0.0)
        self.join, self.stop = self._workers.join, self._workers.stop

    async def turn(self, request: EngineRequest) -> Turn | None:
        """The worker for a prompt: it had most of it before, or has least to do. None without."""
        try:
            replica = await self._workers.choose(request)
        except EngineDead:
            return None
        state = replica.engine.state
        if state is None or state.handover is None:
            return None
        return Turn(replica, state.handover)
