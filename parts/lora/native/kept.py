"""The adapters that the native engine has in memory, and who uses them.

The backend has places for `max_used`, which steps compute with: a request to a further one waits
for a place, and those that come later wait behind it. Of those without a request the last ones keep
their place, and in the host's memory the last `max_kept` stay, until their room is needed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

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
    loading: asyncio.Task[None]  # into its place
    num_users: int = 0
    is_placed: bool = True
    prepared: Any = None  # once it is read

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
        """Use an adapter that has a place, if no request waits; release() ends it."""
        kept = self._kept.get(adapter.key)
        if kept is None or self._turn.locked() or not (kept.is_placed and kept.loading.done()):
            return False
        self._use(adapter.key, kept)
        return True

    async def acquire(self, adapter: Adapter) -> None:
        """Use an adapter once it has a place; raises InvalidRequest or another EngineError."""
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
        """The adapter, whose loading is begun where it has no place; None if all are used."""
        kept = self._kept.get(adapter.key)
        if kept is not None and kept.is_placed:
            return kept
        placed = [key for key, each in self._kept.items() if each.is_placed]
        if len(placed) >= self._limits.max_used:
            idle = next((key for key in placed if not self._kept[key].is_busy), None)
            if idle is None:
                return None
            self._displace(idle)
        if kept is None and len(self._kept) >= self._limits.max_kept:
            del self._kept[next(key for key, each in self._kept.items() if not each.is_placed)]
        prepared = None if kept is None else kept.prepared
        loading = asyncio.create_task(self._load(adapter, prepared), name="adapter")
        loading.add_done_callback(partial(self._on_loaded, adapter.key))
        kept = self._kept[adapter.key] = _Kept(loading, prepared=prepared)
        return kept

    def _on_loaded(self, key: str, loading: asyncio.Task[None]) -> None:
        if loading.cancelled() or loading.exception() is not None:
            del self._kept[key]  # the next request tries again
        self._freed.set()

    async def _load(self, adapter: Adapter, prepared: Any) -> None:
        if prepared is None:
            prepared = self._kept[adapter.key].prepared = await self._read(adapter)
        put = self._runner.call(lambda _: self._table.put(adapter.key, prepared))
        await asyncio.wrap_future(put)

    async def _read(self, adapter: Adapter) -> Any:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_MOST_S):
                return await loop.run_in_executor(self._threads, self._loader.load, adapter)
        except TimeoutError:
            raise RequestFailed(
                f"the adapter {adapter.name!r} was not read in {_MOST_S:g} s; see whether the file"
                f" system of {adapter.path} answers"
            ) from None
        except MemoryError:
            raise InvalidRequest(
                f"there is no memory for the adapter {adapter.name!r}; lower NIM_MAX_CPU_LORAS"
            ) from None

    def _use(self, key: str, kept: _Kept) -> None:
        kept.num_users += 1
        self._kept.move_to_end(key)

    def _release(self, kept: _Kept) -> None:
        kept.num_users -= 1
        self._freed.set()

    def _displace(self, key: str) -> None:
        """Behind the aborts of its last requests: the engine's thread does one after another."""
        self._kept[key].is_placed = False
        with suppress(EngineDead):
            self._runner.call(lambda _: self._table.remove(key))
