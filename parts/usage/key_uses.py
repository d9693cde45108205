"""When keys were used last, for `harmonium keys list`: read beside a server that runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

from service.cli.keys import KeyUses
from service.run.database import database_of, place_in, shared_of
from service.settings.settings import Settings


class _Uses(KeyUses):
    def of(self, settings: Settings) -> dict[str, datetime]:
        path = settings.responses_path or place_in(settings.cache_path).path
        if shared_of(settings) is None and not path.exists():
            return {}
        return {
            id.removeprefix("key-"): datetime.fromtimestamp(at, UTC)
            for id, at in asyncio.run(_read(settings)).items()
        }


async def _read(settings: Settings) -> dict[str, int]:
    from parts.usage.counting.stored import store_on

    database = database_of(settings)
    try:
        return dict(await store_on(database).uses())
    finally:
        await database.close()


KEY_USES: Final = _Uses()
