"""Drafts of a native engine whose option `speculation` is 'ngram'."""

from __future__ import annotations

from typing import Final

from engines.errors import EngineStartError
from engines.native.assemble import EnginePart
from engines.native.backends.base import Capacity
from engines.native.config import NativeConfig
from engines.native.loop.option import Option
from parts.drafts.ngram_drafts import NgramDrafts


class _Drafts(EnginePart):
    def for_backend(self, config: NativeConfig, capacity: Capacity) -> Option | None:
        if config.speculation == "none":
            return None
        if capacity.max_drafts == 0:
            raise EngineStartError(
                f"speculation is {config.speculation!r}, and this device cannot verify drafts;"
                " use 'none'"
            )
        return NgramDrafts(capacity.max_drafts, capacity.step_cost)


ENGINE: Final = _Drafts()
