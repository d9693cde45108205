"""The counts of several engines as those of one."""

from __future__ import annotations

from engines.base import EngineStats
from engines.fleet import sum_of


def test_what_parts_count_is_added_up_without_knowing_it() -> None:
    first = EngineStats(extras={"saved": 2.0, "lost": 1.0}, levels={"blocks": 5.0})
    second = EngineStats(extras={"saved": 3.0}, levels={"blocks": 4.0})
    both = sum_of([first, second])
    assert both.extras == {"saved": 5.0, "lost": 1.0}
    assert both.levels == {"blocks": 9.0}
