"""K/V of prefixes out of one engine's cache and into another's, block by block.

Functions that are given a core run in the engine's thread, between two steps.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Final

from engines.errors import EngineStartError
from engines.native.backends.base import BlockAccess, BlockContent
from engines.native.checkpoint_digest import checkpoint_digest
from engines.native.config import NativeConfig
from engines.native.loop.core import EngineCore
from engines.native.loop.sequence import Sequence
from engines.native.runner import CoreRunner
from engines.release import release
from parts.dynamo.handover.ask import Fingerprint

_RELEASE: Final = release()


def access_of(core: EngineCore) -> BlockAccess:
    """How blocks of this core are read and written; raises EngineStartError if they are not."""
    access = core.backend.access
    if access is None:
        raise EngineStartError("this engine's K/V cannot be handed over")
    return access


def fingerprint_of(config: NativeConfig, core: EngineCore) -> Fingerprint:
    """What makes a block of one key and its bytes the same in two engines."""
    blocks = core.scheduler.blocks
    values = {
        "release": _RELEASE,
        "checkpoint": checkpoint_digest(config.model_dir),
        "rounded weights": config.quantize,
        "dtype": config.dtype,
        "K/V dtype": config.kv_dtype,
        "layout": access_of(core).layout,
        "tokens in a block": blocks.block_size,
        "sliding window": blocks.sliding_window,
        "batch invariance": config.batch_invariant,
        "byte order": sys.byteorder,
    }
    return {name: str(value) for name, value in values.items()}


async def core_and_fingerprint(
    config: NativeConfig, runner: CoreRunner
) -> tuple[EngineCore, Fingerprint]:
    """The core of a runner that has started, and its fingerprint."""

    def look(core: EngineCore) -> tuple[EngineCore, Fingerprint]:
        return core, fingerprint_of(config, core)

    return await asyncio.wrap_future(runner.call(look))


def copy_out(core: EngineCore, keys: list[bytes]) -> Callable[[], BlockContent] | None:
    """Begin to copy these blocks to the host; None if one is not cached any more."""
    blocks = core.scheduler.blocks
    found = blocks.blocks_of(keys)
    if found is None:
        return None
    moves = blocks.take_moves()
    core.note_copies()
    try:
        return access_of(core).copy_out(found, moves)
    except Exception:
        core.scheduler.cancel([], moves)
        raise


def copy_in(core: EngineCore, sequence: Sequence, keys: list[bytes], staged: Any) -> bool:
    """Put blocks of the sequence's prefix into the cache; False if they have no room."""
    blocks = core.scheduler.blocks
    taken = blocks.take_in(sequence, keys)
    if taken is None:
        return False
    moves = blocks.take_moves()  # saves of what was evicted from the blocks come first
    core.note_copies()
    try:
        if taken:
            access_of(core).copy_in([*taken], [*taken.values()], staged, moves)
    except Exception:
        core.scheduler.cancel([], moves)
        blocks.forget(taken.values())
        raise
    return True
