"""How many API workers a server has where no setting says so."""

from __future__ import annotations

import logging
from typing import Final

from service.run.database import database_of
from service.run.startup import Launch
from service.settings.settings import Settings
from service.store.base import StoreError

log = logging.getLogger("harmonium")

# A worker carries some 15,000 tokens a second of streams that get a token in every step, and an
# H100 generates 18,000 in 128 of them and 36,000 in 512.
_PER_ENGINE: Final = 2
_SERVER = 16, 64 * 10**9  # cores and bytes; with less a machine is a laptop
_WORKER_BYTES: Final = 150 << 20
_MEMORY_SHARE: Final = 16  # of the machine's memory, one part at most


def count_for(num_engines: int, num_cores: int, memory_bytes: int) -> tuple[int, str]:
    """The number for engines on GPUs, and why.

    Each engine has a core for itself. One engine alone has one worker where that is a laptop.
    """
    if num_engines == 1 and (num_cores < _SERVER[0] or memory_bytes < _SERVER[1]):
        return 1, "there is one engine"
    wanted = _PER_ENGINE * num_engines
    by_cores = max(num_cores - num_engines, 1)
    by_memory = max(memory_bytes // (_MEMORY_SHARE * _WORKER_BYTES), 1)
    count = min(wanted, by_cores, by_memory)
    if count == wanted:
        each = "the engine" if num_engines == 1 else f"each of {num_engines} engines"
        return count, f"{_PER_ENGINE} for {each}"
    if count == by_cores:
        return count, f"{num_cores} CPU cores leave no more beside {num_engines} engines"
    return count, f"{memory_bytes / 1e9:.0f} GB of memory have room for no more"


async def with_workers(settings: Settings, launch: Launch) -> Settings:
    """The settings with the number of workers that is used; logs it where there are several, or
    several engines."""
    num_engines, cpu = len(launch.devices), launch.hardware.cpu
    if settings.api_workers is not None:
        count, reason = settings.api_workers, "as NIM_API_WORKERS says"
    elif launch.selection.chosen.profile.gpu is None:
        count, reason = 1, "the engines compute on the CPU"
    else:
        count, reason = count_for(num_engines, cpu.num_cores, cpu.total_bytes)
        if count > 1:
            try:
                await database_of(settings.model_copy(update={"api_workers": count})).close()
            except StoreError as error:  # workers cannot share what is in memory
                count, reason = 1, f"several need a file of stored responses ({error})"
    if count > 1 or num_engines > 1:
        hint = "" if settings.api_workers else "; NIM_API_WORKERS sets another number"
        log.info("API workers: %d: %s%s", count, reason, hint)
    return settings.model_copy(update={"api_workers": count})
