"""Whether the Redis can be reached."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from parts.redis.settings import RedisSettings
from service.cli.doctor_checks import Check, PartChecks, reachable
from service.settings.settings import Settings


class _Redis(PartChecks):
    def of(self, settings: Settings) -> Iterable[Check]:
        url = settings.of(RedisSettings).redis_url
        if url is not None:
            yield reachable("redis", url.get_secret_value(), 6379)


CHECKS: Final = _Redis()
