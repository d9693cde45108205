"""What a failing Redis means for limits: for some seconds it is not asked, and nobody waits."""

from __future__ import annotations

from typing import Final

from service.store.outage import Outage

TIMEOUT_S: Final = 1.0  # of one question to Redis


def redis_outage() -> Outage:
    return Outage("Redis", "limits count for this process alone until it is back")
