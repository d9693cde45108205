"""How many examples a property is tried with: few by default, all of them by `make test-slow`.

And the text they are made of.
"""

from __future__ import annotations

import os
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# All that is a character. Hypothesis' own default is the same by way of a codec, of which each
# process on a fresh clone would make the table: a second and a half.
_CHARACTERS: Final = st.characters(exclude_categories=["Cs"])
_SHARE: Final = 1 if os.environ.get("ALL_EXAMPLES") else 16


def examples(number: int, **options: Any) -> settings:
    """Settings of a property that is worth `number` examples: the same in every run, no clock."""
    options.setdefault("suppress_health_check", [HealthCheck.too_slow])  # a clock as well
    return settings(
        max_examples=max(number // _SHARE, 10),
        deadline=None,
        derandomize=True,
        database=None,
        **options,
    )


def any_text(max_size: int | None = None) -> st.SearchStrategy[str]:
    """Text of any characters."""
    return st.text(_CHARACTERS, max_size=max_size)
