"""What servers share in a Redis. Its libraries load where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from parts.redis.settings import RedisSettings
from service.run.database import SharedPart
from service.settings.settings import Settings

if TYPE_CHECKING:
    from service.admission.remote import RemoteLimits
    from service.store.base import ScriptDatabase


class _Redis(SharedPart):
    def is_asked(self, settings: Settings) -> bool:
        return settings.of(RedisSettings).redis_url is not None

    def database(self, settings: Settings) -> ScriptDatabase:
        from parts.redis.database import RedisDatabase

        return RedisDatabase(_url(settings))

    def limits(self, settings: Settings) -> RemoteLimits:
        from parts.redis.limits import limits_in

        return limits_in(_url(settings))


def _url(settings: Settings) -> str:
    url = settings.of(RedisSettings).redis_url
    assert url is not None
    return url.get_secret_value()


SHARED: Final = _Redis()
