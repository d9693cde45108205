"""KV events of a native engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engines.native.assemble import EnginePart
from engines.native.loop.option import Option
from parts.kv_events.events import KvEvents
from parts.kv_events.recorder import BlockEvents


class _KvEvents(EnginePart):
    def for_spec(self, given: Mapping[str, Any]) -> Option | None:
        from parts.kv_events.publisher import KvEventPublisher  # msgspec only where it is used

        return BlockEvents(KvEventPublisher(KvEvents(**given)))


ENGINE: Final = _KvEvents()
