"""The keys of cached K/V blocks, and of those that a running sequence will compute."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from engines.native.sequence import Sequence

FULL, WINDOW = b"f", b"w"  # key = group + hash of the whole prefix up to the block's end


@dataclass(frozen=True, slots=True)
class Prefix:
    """Leading blocks of a sequence that need not be computed, by their keys."""

    full: list[bytes] = field(default_factory=list)
    window: list[bytes] = field(default_factory=list)  # the last ones, which the window sees

    @property
    def num_blocks(self) -> int:
        return len(self.full)

    @property
    def keys(self) -> list[bytes]:
        return self.full + self.window


class BlockHasher:
    """Hashes the blocks of sequences; equal hashes mean equal K/V, and no two tenants share one."""

    def __init__(self, block_size: int, *, is_answer_apart: bool) -> None:
        """`is_answer_apart`: blocks of prompts and of answers get different keys."""
        self.block_size, self.is_answer_apart = block_size, is_answer_apart

    def hashes(self, sequence: Sequence, num_blocks: int) -> list[bytes]:
        """Hashes of at least the first num_blocks blocks; the sequence keeps them."""
        hashes, size = sequence.block_hashes, self.block_size
        for i in range(len(hashes), num_blocks):
            parent = hashes[-1] if hashes else _salt_hash(sequence.request.cache_salt)
            tokens = array("q", sequence.token_ids[i * size : (i + 1) * size]).tobytes()
            num_answer = min((i + 1) * size - sequence.num_prompt_tokens, size)
            if self.is_answer_apart and num_answer > 0:
                tokens += num_answer.to_bytes(4)
            hashes.append(blake2b(parent + tokens, digest_size=16).digest())
        return hashes


def _salt_hash(salt: str | None) -> bytes:
    text = b"" if salt is None else b"salt:" + salt.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=16).digest()


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
