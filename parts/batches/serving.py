"""Where an API worker keeps files, and how much of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from parts.batches.files.folder import FilesFolder
from parts.batches.settings import BatchesSettings
from parts.batches.store.base import StorageBounds
from service.run.wiring import ServingPart
from service.settings.settings import Settings

if TYPE_CHECKING:
    from service.runtime import Runtime

FOLDER_NAME: Final = "files"  # in the cache


class _Batches(ServingPart):
    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        own = settings.of(BatchesSettings)
        folder = FilesFolder(own.files_path or settings.cache_path / FOLDER_NAME)
        bounds = StorageBounds(own.files_max_bytes)
        return replace(runtime, parts=(*runtime.parts, folder, bounds))


SERVING: Final = _Batches()
