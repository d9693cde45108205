"""What of a request is cached, before the engine's thread has it."""

from __future__ import annotations

from typing import NamedTuple

from engines.base import EngineRequest
from engines.native.block_manager import BlockManager
from engines.native.sequence import Sequence


class FoundPrefix(NamedTuple):
    """The first tokens of a request that are cached, and the hashes of its blocks."""

    num_tokens: int = 0
    block_hashes: tuple[bytes, ...] = ()


def find_prefix(request: EngineRequest, max_model_len: int, blocks: BlockManager) -> FoundPrefix:
    """Look in the prefix cache, from any thread: nothing is changed or held."""
    sequence = Sequence(request, max_model_len)
    num_blocks = blocks.find_prefix(sequence).num_blocks
    return FoundPrefix(num_blocks * blocks.block_size, tuple(sequence.block_hashes))
