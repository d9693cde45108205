"""The workers that compute prompts for one that decodes."""

from __future__ import annotations

from collections.abc import Callable

from engines.base import EngineRequest
from engines.errors import EngineDead
from engines.fields import forbids_prefix_cache
from engines.fleet import Replica
from parts.dynamo.handover.spec import LEAST_HANDED_OVER
from parts.dynamo.network.deployment import Deployment
from parts.dynamo.network.runtime import Discovery
from parts.dynamo.network.worker_client import WorkerClient


class PrefillTurn:
    """One prompt at one worker, which has it to do until `end`."""

    def __init__(
        self,
        replica: Replica[WorkerClient],
        endpoint: str,
        num_tokens: int,
        forget: Callable[[int], None],
    ) -> None:
        """`endpoint`: where its engine hands K/V over; `num_tokens`: of the prompt."""
        self.endpoint = endpoint
        self._replica: Replica[WorkerClient] | None = replica
        self._num_tokens, self._forget = num_tokens, forget
        replica.num_running += 1

    def end(self, num_cached: int | None = None) -> None:
        """The prompt is computed; may be called twice.

        `num_cached`: its tokens that the engine found in its cache. Where that is not nearly all,
        the worker did not hand them over: what it was thought to have is forgotten.
        """
        replica, self._replica = self._replica, None
        if replica is None:
            return
        replica.num_running -= 1
        if num_cached is not None and self._num_tokens - num_cached > LEAST_HANDED_OVER:
            self._forget(replica.number)


class Prefillers:
    """Follows these workers, and shares prompts out as a front does with requests."""

    def __init__(self, endpoint: str, discovery: Discovery) -> None:
        self._workers = Deployment(endpoint, discovery, lambda: None, patience_s=0.0)
        self.join, self.stop = self._workers.join, self._workers.stop

    async def turn(self, request: EngineRequest) -> PrefillTurn | None:
        """The worker for a prompt: it had most of it before, or has least to do.

        None without a worker, and for a prompt that no engine hands over.
        """
        num_tokens = len(request.prompt_token_ids)
        if num_tokens <= LEAST_HANDED_OVER or forbids_prefix_cache(request.sampling):
            return None
        try:
            replica = await self._workers.choose(request)
        except EngineDead:
            return None
        state = replica.engine.state
        if state is None or state.handover is None:
            return None
        return PrefillTurn(replica, state.handover, num_tokens, self._workers.forget)
