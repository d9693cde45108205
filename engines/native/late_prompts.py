"""How much longer than the target gaps between tokens may be while prompts are late."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from engines.native.sequence import Sequence

_LATE_S: Final = 3.0  # since a request arrived
_LATE_GAP_S: Final = 0.05  # then, and in proportion to the wait from there on
_LONGEST_GAP_S: Final = 0.2


def allowed_gap_s(
    target_s: float | None, prompts: Iterable[Sequence], now_s: float
) -> float | None:
    """The target, or a longer gap if the second-oldest prompt has waited for long; in seconds.

    Many prompts at once would otherwise wait past their limit while few answers keep the target.
    One long prompt never lengthens gaps: no other request waits behind it.
    """
    if target_s is None:
        return None
    arrived = sorted(prompt.arrived_s for prompt in prompts if not prompt.is_resumed)[:2]
    waited_s = now_s - arrived[-1] if len(arrived) == 2 else 0.0
    if waited_s < _LATE_S:
        return target_s
    return max(target_s, min(_LATE_GAP_S * waited_s / _LATE_S, _LONGEST_GAP_S))
