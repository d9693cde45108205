"""How many examples a property is tried with: few by default, all of them by `make test-slow`."""

from __future__ import annotations

import os
from typing import Any, Final

from hypothesis import settings

_SHARE: Final = 1 if os.environ.get("ALL_EXAMPLES") else 4


def examples(number: int, **options: Any) -> settings:
    """Settings of a property that is worth `number` examples: the same in every run, no clock."""
    return settings(
        max_examples=max(number // _SHARE, 10),
        deadline=None,
        derandomize=True,
        database=None,
        **options,
    )
