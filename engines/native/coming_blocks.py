"""Whole blocks that a sequence will compute, so that others wait to find them."""

from __future__ import annotations

from collections.abc import Iterable

from engines.native.sequence import Sequence


class ComingBlocks:
    """By hash, the first sequence that will compute each."""

    def __init__(self) -> None:
        self._by_hash: dict[bytes, Sequence] = {}

    def __bool__(self) -> bool:
        return bool(self._by_hash)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._by_hash

    def add(self, sequence: Sequence, hashes: Iterable[bytes]) -> None:
        for block_hash in hashes:
            self._by_hash.setdefault(block_hash, sequence)

    def take_back(self, sequence: Sequence, first: int, end: int | None = None) -> None:
        """The sequence will not compute these blocks: it has, or it never will."""
        for block_hash in sequence.block_hashes[first:end]:
            if self._by_hash.get(block_hash) is sequence:
                del self._by_hash[block_hash]
