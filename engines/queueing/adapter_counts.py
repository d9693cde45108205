"""How many requests of each adapter run and wait, as levels of EngineStats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from engines.queueing.fair_queue import Entry

# In EngineStats.levels, before the name of an adapter.
RUNNING: Final = "adapter_running/"
WAITING: Final = "adapter_waiting/"


def adapter_levels(running: Iterable[Entry[Any]], waiting: Iterable[Entry[Any]]) -> Counter[str]:
    entries = [(RUNNING, entry) for entry in running]
    entries += [(WAITING, entry) for entry in waiting]
    asked = ((kind, entry.request.adapter) for kind, entry in entries)
    return Counter(f"{kind}{adapter.name}" for kind, adapter in asked if adapter is not None)
