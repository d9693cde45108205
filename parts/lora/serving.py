"""Adapters in an API worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from parts.lora.settings import LoraSettings
from service.run.wiring import ServingPart
from service.settings.settings import Settings

if TYPE_CHECKING:
    from parts.lora.registry import AdapterFolder
    from service.runtime import Runtime


@dataclass(frozen=True, slots=True)
class ServedAdapters:
    """In a Runtime: adapters are on."""

    folder: AdapterFolder
    refresh_s: float | None
    cache: Path | None = None  # for adapters that are fetched; None if none may be
    fetching: asyncio.Lock = field(default_factory=asyncio.Lock)


class _Lora(ServingPart):
    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        own = settings.of(LoraSettings)
        if runtime.model.profile is None:
            return runtime
        is_offline = settings.disable_model_download
        return with_adapters(runtime, own, None if is_offline else settings.cache_path)

    def running(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        served = runtime.of(ServedAdapters)
        if served is None or served.refresh_s is None:
            return nullcontext()
        return _refreshing(served.folder, served.refresh_s)


def with_adapters(runtime: Runtime, own: LoraSettings, cache: Path | None = None) -> Runtime:
    """The runtime with the adapters of these settings, if there are any; `cache`: for those that
    are fetched."""
    if own.peft_source is None:
        return runtime
    from parts.lora.info import AdapterInfo
    from parts.lora.registry import AdapterFolder

    folder = AdapterFolder(
        own.peft_source, own.max_lora_rank, runtime.model.names, runtime.shared_folder
    )
    folder.refresh()
    runtime.metrics.add(AdapterInfo(runtime.metrics, own.max_gpu_loras))
    served = ServedAdapters(folder, own.peft_refresh_interval, cache)
    return replace(runtime, adapters=folder, parts=(*runtime.parts, served))


@asynccontextmanager
async def _refreshing(folder: AdapterFolder, every_s: float) -> AsyncIterator[None]:
    async def refresh() -> None:
        while True:
            await asyncio.sleep(every_s)
            with suppress(OSError):  # the folder's file system is away: what was found stays
                await asyncio.to_thread(folder.refresh)

    task = asyncio.create_task(refresh(), name="adapters")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


SERVING: Final = _Lora()
