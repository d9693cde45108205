"""An engine that has others compute prompts: it takes their K/V, then runs the request.

A request waits here until the K/V of its prompt are in the prefix cache, where the scheduler finds
them like any others. Whatever does not come is computed: a handover that fails costs time only.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Final

import numpy as np

from engines.base import EngineInfo, EngineRequest, EngineStats, Receive
from engines.errors import EngineDead, EngineError
from engines.fields import forbids_prefix_cache
from engines.native.backends.base import BlockAccess
from engines.native.config import NativeConfig
from engines.native.loop.block_pool import FULL
from engines.native.loop.sequence import Sequence
from engines.native.runner import CoreRunner
from engines.native.worker import Submission
from parts.dynamo.handover.ask import PrefillAsk, prompt_alone
from parts.dynamo.handover.channel import Disagreement, HandoverError
from parts.dynamo.handover.exchange import access_of, copy_in, core_and_fingerprint
from parts.dynamo.handover.fetch import MOST_BYTES, PIECE_BYTES, Fetch
from parts.dynamo.handover.idle_channels import IdleChannels
from parts.dynamo.handover.nixl import NixlAgent
from parts.dynamo.handover.spec import LEAST_HANDED_OVER, KvHandover, prefilling_peer

_MOST_AT_ONCE: Final = 16  # handovers
_AVOIDED_S: Final = 5.0  # a peer that failed
_AVOIDED_LONG_S: Final = 60.0  # one that does not fit

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Counts:
    """What was handed over; the names are those of EngineStats.extras."""

    handovers: int = 0  # prompts whose K/V another engine has handed over
    failed_handovers: int = 0  # whose K/V did not come, or not all: computed here
    handover_blocks: int = 0  # of K/V, received
    handover_bytes: int = 0  # of their content
    handover_seconds: float = 0.0  # waited for K/V, the other engine's computing included


class PrefilledElsewhere:
    """A runner whose prompts another engine computes; implements engines.base.Runner."""

    def __init__(self, runner: CoreRunner, config: NativeConfig, settings: KvHandover) -> None:
        self._runner, self._config, self._settings = runner, config, settings
        self._agent: NixlAgent | None = None
        self._idle = IdleChannels()
        self._threads = ThreadPoolExecutor(_MOST_AT_ONCE, "kv-handover")
        self._waiting: dict[Submission, tuple[Fetch, Receive]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()  # guards the counts and who is avoided
        self._counts = _Counts()
        self._avoided: dict[str, float] = {}  # until when, by the peer's endpoint

    @property
    def info(self) -> EngineInfo:
        return self._runner.info

    async def start(self) -> None:
        await self._runner.start()
        self._core, self._fingerprint = await core_and_fingerprint(self._config, self._runner)
        self._access = access_of(self._core)
        if self._settings.transport == "nixl":
            self._agent = NixlAgent(max(PIECE_BYTES, self._access.block_bytes))

    async def prepare(self, request: EngineRequest) -> Submission:
        return await self._runner.prepare(request)

    def num_cached_tokens(self, run: Submission) -> int | None:
        """All tokens of a prompt that another engine computes."""
        if self._is_others(run.request):
            return len(run.request.prompt_token_ids)
        return self._runner.num_cached_tokens(run)

    def begin(self, run: Submission, receive: Receive, arrived_s: float) -> None:
        """Run it once its prompt's K/V are here, or will not come."""
        if not self._is_others(run.request):
            self._runner.begin(run, receive, arrived_s)
            return
        fetch = Fetch(self._settings.secret, self._settings.timeout_s, self._idle, self._agent)
        self._waiting[run] = fetch, receive
        task = asyncio.create_task(self._begin(run, fetch, receive, arrived_s), name="kv-handover")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def abort(self, run: Submission) -> None:
        if run in self._waiting:
            fetch, _ = self._waiting.pop(run)
            fetch.cancel()
        else:
            self._runner.abort(run)

    async def stats(self) -> EngineStats:
        """Requests whose K/V are on their way count as waiting."""
        stats = await self._runner.stats()
        with self._lock:
            counts = asdict(self._counts)
        num_waiting = stats.num_waiting + len(self._waiting)
        return replace(stats, num_waiting=num_waiting, extras={**stats.extras, **counts})

    async def check_health(self) -> None:
        await self._runner.check_health()

    async def stop(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for fetch, receive in waiting.values():
            fetch.cancel()
            receive(EngineDead("the engine has been stopped"))
        await self._runner.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._threads.shutdown()
        self._idle.close()

    def _is_others(self, request: EngineRequest) -> bool:
        peer = prefilling_peer(request)
        if peer is None or forbids_prefix_cache(request.sampling):
            return False
        is_avoided = time.monotonic() < self._avoided.get(peer, 0.0)
        return len(request.prompt_token_ids) > LEAST_HANDED_OVER and not is_avoided

    async def _begin(
        self, run: Submission, fetch: Fetch, receive: Receive, arrived_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._bring, run, fetch)
        if self._waiting.pop(run, None) is None:
            return  # it was ended meanwhile
        try:
            self._runner.begin(run, receive, arrived_s)
        except EngineError as error:
            receive(error)

    def _bring(self, run: Submission, fetch: Fetch) -> None:
        """Have the prompt's K/V in the cache, as far as they come; in a thread of its own."""
        peer = prefilling_peer(run.request)
        assert peer is not None
        begun_s = time.monotonic()
        try:
            has_asked = self._fetch(run, peer, fetch)
        except HandoverError as error:
            if fetch.is_cancelled:
                return
            self._note_failure(peer, error, time.monotonic() - begun_s)
        except EngineDead:
            pass  # the request hears of it when it begins
        except Exception as error:
            log.exception("K/V of request %s were not taken", run.request.request_id)
            self._note_failure(peer, HandoverError(str(error)), time.monotonic() - begun_s)
        else:
            with self._lock:
                self._counts.handovers += has_asked
                self._counts.handover_seconds += time.monotonic() - begun_s

    def _fetch(self, run: Submission, peer: str, fetch: Fetch) -> bool:
        """Take the K/V from the peer; False if hardly any is missing."""
        blocks, request = self._core.scheduler.blocks, prompt_alone(run.request)
        sequence = Sequence(request, self._runner.info.max_model_len)
        if run.prefix is not None:
            num_whole = sequence.num_prompt_tokens // blocks.block_size
            sequence.block_hashes = [*run.prefix.block_hashes[:num_whole]]
        keys = blocks.prefix_keys(sequence)
        full = [key for key in keys if key.startswith(FULL)]
        num_missing = len(full) - blocks.find_prefix(sequence).num_blocks
        if num_missing * blocks.block_size < LEAST_HANDED_OVER:
            return False
        num_known = len([*takewhile(lambda key: blocks.blocks_of([key]), full)])
        ask = PrefillAsk(request, self._fingerprint, num_known, takes_nixl=self._agent is not None)
        arrivals = _Arrivals(self._runner, self._access, sequence, keys.keys())
        try:
            fetch.run(peer, ask, arrivals)
            arrivals.wait(0)
        finally:
            with self._lock:
                self._counts.handover_blocks += arrivals.num_blocks
                self._counts.handover_bytes += arrivals.num_bytes
        return True

    def _note_failure(self, peer: str, error: HandoverError, seconds: float) -> None:
        avoided_s = _AVOIDED_LONG_S if isinstance(error, Disagreement) else _AVOIDED_S
        with self._lock:
            self._counts.failed_handovers += 1
            self._counts.handover_seconds += seconds
            self._avoided[peer] = time.monotonic() + avoided_s
        log.warning(
            "No K/V from the prefill engine at %s: %s. Prompts are computed here; it is asked"
            " again in %.0f s.",
            *(peer, error, avoided_s),
        )


class _Arrivals:
    """Blocks of one prompt on their way into the cache; implements fetch.Taker."""

    def __init__(
        self, runner: CoreRunner, access: BlockAccess, sequence: Sequence, keys: Set[bytes]
    ) -> None:
        """`keys`: of all blocks that the prompt can have."""
        self._runner, self._access = runner, access
        self._sequence, self._keys = sequence, keys
        self._copies: deque[Future[bool]] = deque()
        self.block_bytes = access.block_bytes
        self.num_blocks = self.num_bytes = 0

    def room(self, num_bytes: int) -> memoryview:
        return self._access.room(num_bytes).data

    def take(self, keys: list[bytes], content: memoryview) -> None:
        if not self._keys >= set(keys):
            raise HandoverError("it sent blocks of another prompt")
        rows = np.frombuffer(content, np.uint8).reshape(len(keys), -1)
        staged = self._access.staged(rows)
        work = partial(copy_in, sequence=self._sequence, keys=keys, staged=staged)
        self._copies.append(self._runner.call(work))
        self.wait(MOST_BYTES // PIECE_BYTES)
        self.num_blocks += len(keys)
        self.num_bytes += len(content)

    def wait(self, most: int) -> None:
        """Wait until no more copies are under way; they are made between two steps."""
        while len(self._copies) > most:
            if not self._copies.popleft().result():
                raise HandoverError("the KV cache has no room for it")
