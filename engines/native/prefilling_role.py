"""An engine that computes prompts for others: what engines/handover/server.py serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from functools import partial

from engines.base import EngineRequest, TokenEvent
from engines.handover.ask import Ask, Fingerprint
from engines.handover.channel import HandoverError
from engines.handover.fetch import PIECE_BYTES
from engines.handover.server import Piece
from engines.native.block_pool import FULL
from engines.native.config import NativeConfig
from engines.native.core import EngineCore
from engines.native.kv_exchange import (
    access_of,
    copy_out,
    core_and_fingerprint,
    keys_to_give,
)
from engines.native.runner import CoreRunner
from engines.native.sequence import Sequence

Generate = Callable[[EngineRequest], AsyncGenerator[TokenEvent, None]]


class GivenPrompts:
    """Prompts as requests of one token; implements engines.handover.server.Source."""

    def __init__(
        self, runner: CoreRunner, generate: Generate, core: EngineCore, fingerprint: Fingerprint
    ) -> None:
        """`generate`: of the queue in front of the runner."""
        self._runner, self._generate, self._core = runner, generate, core
        self.fingerprint = fingerprint
        self._block_bytes = access_of(core).block_bytes
        self.most_bytes = max(PIECE_BYTES, self._block_bytes)

    @classmethod
    async def of(cls, config: NativeConfig, runner: CoreRunner, generate: Generate) -> GivenPrompts:
        """Make the source of an engine that has started."""
        core, found = await core_and_fingerprint(config, runner)
        return cls(runner, generate, core, found)

    async def compute(self, ask: Ask) -> None:
        """Compute the prompt, so that its blocks are cached; raises EngineError."""
        if await asyncio.to_thread(self._is_cached, ask):
            return
        async with aclosing(self._generate(ask.request)) as events:
            async for _ in events:
                pass

    def _is_cached(self, ask: Ask) -> bool:
        blocks = self._core.scheduler.blocks
        sequence = Sequence(ask.request, self._runner.info.max_model_len)
        return set(blocks.cached_prefix(sequence).full) >= {
            key for key in blocks.prefix_keys(sequence) if key.startswith(FULL)
        }

    def pieces(self, ask: Ask) -> Iterator[Piece]:
        """The blocks that are cached; raises HandoverError if one is evicted meanwhile."""
        sequence = Sequence(ask.request, self._runner.info.max_model_len)
        find = partial(keys_to_give, sequence=sequence, num_known=ask.num_known)
        keys = self._runner.call(find).result()
        num = max(PIECE_BYTES // self._block_bytes, 1)
        for some in (keys[at : at + num] for at in range(0, len(keys), num)):
            content = self._runner.call(partial(copy_out, keys=some)).result()
            if content is None:
                raise HandoverError("its K/V were evicted before they were sent")
            yield some, memoryview(content().data).cast("B")
