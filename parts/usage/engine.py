"""The seconds of a native engine, counted by the account that a request names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from engines.native.assemble import EnginePart
from engines.native.loop.option import Option


class _Usage(EnginePart):
    needs_prefix_cache: ClassVar[bool] = False

    def for_spec(self, given: Mapping[str, Any]) -> Option | None:
        from parts.usage.counting.engine_time import EngineTime

        return EngineTime(**given)


ENGINE: Final = _Usage()
