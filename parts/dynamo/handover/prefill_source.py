"""An engine that computes prompts for others: what parts/dynamo/handover/server.py serves."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from engines.errors import EngineDead
from engines.native.backends.base import BlockContent
from engines.native.config import NativeConfig
from engines.native.engine_option import Generate
from engines.native.loop.block_manager import BlockManager
from engines.native.loop.block_pool import FULL
from engines.native.loop.core import EngineCore
from engines.native.loop.sequence import Sequence
from engines.native.runner import CoreRunner
from parts.dynamo.handover.ask import Fingerprint, PrefillAsk
from parts.dynamo.handover.channel import HandoverError
from parts.dynamo.handover.exchange import access_of, copy_out, core_and_fingerprint
from parts.dynamo.handover.fetch import MOST_BYTES, PIECE_BYTES
from parts.dynamo.handover.server import Piece

_NEW_PER_WINDOW: Final = 8  # blocks of the other layers for each of the sliding ones


class PrefillSource:
    """Prompts as requests of one token; implements server.Source."""

    def __init__(
        self, runner: CoreRunner, generate: Generate, core: EngineCore, fingerprint: Fingerprint
    ) -> None:
        """`generate`: of the queue in front of the runner."""
        self._runner, self._generate, self._core = runner, generate, core
        self.fingerprint = fingerprint
        self._block_bytes = access_of(core).block_bytes
        self.most_bytes = max(PIECE_BYTES, self._block_bytes)

    @classmethod
    async def of(
        cls, config: NativeConfig, runner: CoreRunner, generate: Generate
    ) -> PrefillSource:
        """Make the source of an engine that has started."""
        core, found = await core_and_fingerprint(config, runner)
        return cls(runner, generate, core, found)

    @contextmanager
    def serve(self, ask: PrefillAsk) -> Iterator[ServedPrompt]:
        """The prompt's K/V; while they are given, each step's blocks are copied behind it."""
        sequence = Sequence(ask.request, self._core.scheduler.limits.max_model_len)
        keys = self._core.scheduler.blocks.prefix_keys(sequence)
        full = [key for key in keys if key.startswith(FULL)]
        num_in_piece = max(PIECE_BYTES // self._block_bytes, 1)
        one = ServedPrompt(
            sequence, full, ask.num_known, num_in_piece, self._generate, self._runner
        )
        beginning = self._runner.call(one.begin)
        self._runner.call(one.advance)  # the first blocks are sent while others are still copied
        beginning.result()
        try:
            yield one
        finally:
            with suppress(EngineDead):
                self._runner.call(one.end)


class _Copies(NamedTuple):
    """Blocks on their way to the host."""

    keys: list[bytes]
    content: Callable[[], BlockContent]  # waits for them


class ServedPrompt:
    """One prompt's blocks, copied to the host between steps as they are computed.

    The engine's thread copies, and the thread of the connection takes: at most MOST_BYTES wait
    between the two.
    """

    def __init__(
        self,
        sequence: Sequence,
        full: list[bytes],
        num_known: int,
        num_in_piece: int,
        generate: Generate,
        runner: CoreRunner,
    ) -> None:
        """`full`: all keys of the prompt's whole blocks; the peer has the first `num_known`."""
        self._sequence, self._generate, self._runner = sequence, generate, runner
        self._full, self._num_in_piece = full, num_in_piece
        self._num_found = num_known  # of `full`: were cached when they were looked up
        self._num_continuable = num_known  # of them, those that the peer can continue from
        self._waiting: deque[bytes] = deque()  # blocks that were found, for room
        self._has_found_all = False
        self._is_computed = False
        self._ready: SimpleQueue[_Copies | Exception | None] = SimpleQueue()
        self._has_ended = False  # nothing will become ready any more
        self._room = threading.Semaphore(max(MOST_BYTES // PIECE_BYTES, 2))

    def begin(self, core: EngineCore) -> None:
        """In the engine's thread, as are `advance` and `end`."""
        prefix = core.scheduler.blocks.cached_prefix(self._sequence)
        self.is_cached = prefix.num_blocks == len(self._full)
        core.watchers.append(self.advance)

    def end(self, core: EngineCore) -> None:
        core.watchers.remove(self.advance)

    async def compute(self) -> None:
        async with aclosing(self._generate(self._sequence.request)) as events:
            async for _ in events:
                pass

    def note_computed(self, computing: Future[None]) -> None:
        if computing.cancelled():
            return
        try:
            computing.result()
            self._is_computed = True
            self._runner.call(self.advance)
        except Exception as error:
            self._ready.put(error)

    def pieces(self, every_s: float) -> Iterator[Piece | None]:
        """The blocks in their order, and None where there were none for so long; raises
        HandoverError if one is evicted meanwhile."""
        while True:
            try:
                found = self._ready.get(timeout=every_s)
            except Empty:
                yield None
                continue
            if found is None:
                return
            if isinstance(found, Exception):
                raise found
            content = memoryview(found.content().data).cast("B")
            self._room.release()
            if not self._has_ended:
                self._runner.call(self.advance)
            yield found.keys, content

    def advance(self, core: EngineCore) -> None:
        """Begin to copy what is cached, as far as there is room."""
        if self._has_ended:
            return
        try:
            self._find(core.scheduler.blocks)
            while self._waiting and self._room.acquire(blocking=False):
                num = min(self._num_in_piece, len(self._waiting))
                self._copy(core, [self._waiting.popleft() for _ in range(num)])
            if not self._waiting and not self._has_found_all:
                self._copy_window(core)
        except Exception as error:
            self._has_ended = True
            self._ready.put(error)
        if self._has_found_all and not self._waiting and not self._has_ended:
            self._has_ended = True
            self._ready.put(None)

    def _copy(self, core: EngineCore, keys: list[bytes]) -> None:
        content = copy_out(core, keys)
        if content is None:
            raise HandoverError("its K/V were evicted before they were sent")
        self._ready.put(_Copies(keys, content))

    def _copy_window(self, core: EngineCore) -> None:
        """Copy what the sliding layers see behind the blocks so far: with it, the peer can continue
        from there if we are lost. Not where that would be much beside the blocks themselves."""
        num_new = self._num_found - self._num_continuable
        if num_new < _NEW_PER_WINDOW:
            return
        prefix = core.scheduler.blocks.cached_prefix(self._sequence)
        num = len(prefix.window)
        if prefix.num_blocks != self._num_found or num > self._num_in_piece:
            return
        if 0 < num <= num_new // _NEW_PER_WINDOW and self._room.acquire(blocking=False):
            self._copy(core, prefix.window)
            self._num_continuable = self._num_found

    def _find(self, blocks: BlockManager) -> None:
        """Note which blocks are cached by now. Those of the sliding layers count at the end: until
        then the window moves on."""
        num = len(self._full)
        while self._num_found < num and blocks.blocks_of([self._full[self._num_found]]):
            self._waiting.append(self._full[self._num_found])
            self._num_found += 1
        if self._has_found_all or not (self._num_found == num or self._is_computed):
            return
        prefix = blocks.cached_prefix(self._sequence)
        if prefix.num_blocks == num or self._is_computed:
            self._has_found_all = True
            self._waiting.extend(prefix.window)
