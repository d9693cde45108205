"""The adapters that the native engine has in memory, and who uses them.

At most `max_used` are used at once: a request to a further one waits for a place, and those that
come later wait behind it. Of those without a request the last ones stay until their room is needed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from engines.base import Adapter
from engines.errors import EngineDead, InvalidRequest, RequestFailed
from engines.native.backends.base import AdapterTable
from engines.native.runner import CoreRunner
from parts.lora.native.loading import AdapterLoader

_AT_ONCE: Final = 2  # adapters that are read
_MOST_S: Final = 120.0  # for reading one


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """How many adapters an engine has, and how large."""

    max_used: int  # by the requests that run
    max_kept: int  # in memory, those included
    max_rank: int


@dataclass(slots=True)
class _Kept:
    loading: asyncio.Task[None]
    num_users: int = 0

    @property
    def is_busy(self) -> bool:
        return self.num_users > 0 or not self.loading.done()


class KeptAdapters:
    """All calls belong to one event loop."""

    def __init__(
        self,
        runner: CoreRunner,
        table: AdapterTable,
        loader: AdapterLoader,
        limits: AdapterLimits,
    ) -> None:
        self._runner, self._table, self._loader, self._limits = runner, table, loader, limits
        self._threads = ThreadPoolExecutor(_AT_ONCE, "lora-loading")
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # by key; those used last at the end
        self._turn = asyncio.Lock()  # of those that need a place
        self._freed = asyncio.Event()

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def take(self, adapter: Adapter) -> bool:
        """Use an adapter that is in memory, if no request waits; release() ends it."""
        kept = self._kept.get(adapter.key)
        if kept is None or self._turn.locked() or not kept.loading.done():
            return False
        self._use(adapter.key, kept)
        return True

    async def acquire(self, adapter: Adapter) -> None:
        """Use an adapter once it is in memory; raises InvalidRequest or another EngineError."""
        async with self._turn:
            while (kept := self._place(adapter)) is None:
                self._freed.clear()
                await self._freed.wait()
            self._use(adapter.key, kept)
        try:
            await asyncio.shield(kept.loading)
        except BaseException:
            self._release(kept)
            raise

    def release(self, adapter: Adapter) -> None:
        """A request does not use it any more: it has ended, or its abort is on its way."""
        self._release(self._kept[adapter.key])

    def close(self) -> None:
        for kept in self._kept.values():
            kept.loading.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _place(self, adapter: Adapter) -> _Kept | None:
        """The adapter, whose loading is begun where it is not there; None if all are used."""
        if (kept := self._kept.get(adapter.key)) is not None:
            return kept
        idle = [key for key, each in self._kept.items() if not each.is_busy]
        if len(self._kept) - len(idle) >= self._limits.max_used:
            return None
        if len(self._kept) >= self._limits.max_kept:
            self._forget(idle[0])
        kept = _Kept(asyncio.create_task(self._load(adapter), name="adapter"))
        kept.loading.add_done_callback(partial(self._on_loaded, adapter.key))
        self._kept[adapter.key] = kept
        return kept

    def _on_loaded(self, key: str, loading: asyncio.Task[None]) -> None:
        if loading.cancelled() or loading.exception() is not None:
            del self._kept[key]  # the next request tries again
        self._freed.set()

    async def _load(self, adapter: Adapter) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_MOST_S):
                prepared = await loop.run_in_executor(self._threads, self._loader.load, adapter)
        except TimeoutError:
            raise RequestFailed(
                f"the adapter {adapter.name!r} was not read in {_MOST_S:g} s; see whether the file"
                f" system of {adapter.path} answers"
            ) from None
        except MemoryError:
            raise InvalidRequest(
                f"there is no memory for the adapter {adapter.name!r}; lower NIM_MAX_CPU_LORAS"
            ) from None
        put = self._runner.call(lambda _: self._table.put(adapter.key, prepared))
        await asyncio.wrap_future(put)

    def _use(self, key: str, kept: _Kept) -> None:
        kept.num_users += 1
        self._kept.move_to_end(key)

    def _release(self, kept: _Kept) -> None:
        kept.num_users -= 1
        self._freed.set()

    def _forget(self, key: str) -> None:
        """Behind the aborts of its last requests: the engine's thread does one after another."""
        del self._kept[key]
        with suppress(EngineDead):
            self._runner.call(lambda _: self._table.remove(key))
