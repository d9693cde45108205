"""The blocks of the KV pool, and the keys by which cached ones are found again.

One pool serves both groups of layers: a block holds K/V of either the full-attention
or the sliding layers, or those of all layers where a backend keeps them together. Every block but
NULL_BLOCK is always in exactly one state:

    state        reference count   in a free list          key
    free         0                 yes, taken first        none
    left behind  0                 yes, oldest use first   until it is handed out again
    cached-free  0                 yes, after all others   until it is handed out again
    referenced   number of users   no                      once it is whole and computed

Left behind are blocks of the window group that a window has passed in the middle of a sequence:
no longer prefix needs them. Those at the end of a prompt, or of a prefix that was shared, are
cached-free.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from engines.native.backends.base import NULL_BLOCK
from engines.native.loop.sequence import Sequence

# The places of a block, in vLLM's words: GPU is the pool that steps compute in, on any device.
DEVICE: Final = "GPU"
HOST: Final = "CPU"

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

    def __init__(self, block_size: int, *, has_separate_answer_keys: bool) -> None:
        """`has_separate_answer_keys`: blocks of prompts and of answers get different keys."""
        self.block_size, self.has_separate_answer_keys = block_size, has_separate_answer_keys

    def hashes(self, sequence: Sequence, num_blocks: int) -> list[bytes]:
        """Hashes of at least the first num_blocks blocks; the sequence keeps them."""
        hashes, size = sequence.block_hashes, self.block_size
        for i in range(len(hashes), num_blocks):
            parent = hashes[-1] if hashes else _salt_hash(sequence.request.cache_salt)
            tokens = array("q", sequence.token_ids[i * size : (i + 1) * size]).tobytes()
            num_answer = min((i + 1) * size - sequence.num_prompt_tokens, size)
            if self.has_separate_answer_keys and num_answer > 0:
                tokens += num_answer.to_bytes(4)
            hashes.append(blake2b(parent + tokens, digest_size=16).digest())
        return hashes


def _salt_hash(salt: str | None) -> bytes:
    text = b"" if salt is None else b"salt:" + salt.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=16).digest()


class BlockPool:
    """Counts the users of each block, and hands out unused ones in the order of eviction."""

    def __init__(self, num_blocks: int) -> None:
        self.cached: dict[bytes, int] = {}  # the block of each key
        self._keys: list[bytes | None] = [None] * num_blocks  # the inverse
        self._ref_counts = [0] * num_blocks
        self._spare: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._free: OrderedDict[int, None] = OrderedDict()  # taken when none is spare

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out now, cached but unreferenced ones included."""
        return len(self._spare) + len(self._free)

    def num_free_beside(self, keys: Iterable[bytes]) -> int:
        """How many of them are left when the cached blocks of these keys are shared."""
        found = (self.cached[key] for key in keys if key in self.cached)
        return self.num_free - sum(self._ref_counts[block] == 0 for block in found)

    def take(self) -> tuple[int, bytes | None, bool]:
        """Hand out an unused block, which there must be: it, the key that finds it no more, and
        whether the key's content was worth keeping."""
        is_evicted = not self._spare
        block, _ = (self._free if is_evicted else self._spare).popitem(last=False)
        key, self._keys[block] = self._keys[block], None
        if key is not None:
            del self.cached[key]
        self._ref_counts[block] = 1
        return block, key, is_evicted

    def share(self, key: bytes) -> int:
        """The cached block of a key, with one more user."""
        block = self.cached[key]
        if self._ref_counts[block] == 0:
            self._unlist(block)
        self._ref_counts[block] += 1
        return block

    def release(self, block: int, *, is_behind: bool = False) -> None:
        self._ref_counts[block] -= 1
        if self._ref_counts[block] == 0:
            self._list(block, is_behind=is_behind)

    def offer(self, key: bytes, block: int) -> None:
        """Let a block be found by its key.

        Two sequences may compute the same prefix side by side: the first block stays the one.
        """
        if key not in self.cached:
            self.cached[key] = block
            self._keys[block] = key

    def forget(self, block: int) -> bytes | None:
        """Stop finding an unused block; the key by which it was found."""
        key, self._keys[block] = self._keys[block], None
        if key is not None:
            del self.cached[key]
            self._unlist(block)
            self._list(block)
        return key

    def faults(self, expected: Counter[int]) -> Iterator[str]:
        """What is wrong with the books; `expected`: the number of users of each block."""
        wrong = {
            block: (count, expected[block])
            for block, count in enumerate(self._ref_counts)
            if count != expected[block]
            or (count == 0) != (block in self._free or block in self._spare or block == NULL_BLOCK)
            or (block in self._free and block in self._spare)
        }
        if wrong:
            yield f"blocks with (counted, true) references out of order: {wrong}"
        keyed = {key: block for block, key in enumerate(self._keys) if key is not None}
        if keyed != self.cached:
            yield "the prefix cache and the keys of the blocks disagree"

    def _list(self, block: int, *, is_behind: bool = False) -> None:
        """Put an unused block into the order of eviction: first, late, or last."""
        if self._keys[block] is None:
            self._spare[block] = None
            self._spare.move_to_end(block, last=False)
        elif is_behind:
            self._spare[block] = None
        else:
            self._free[block] = None

    def _unlist(self, block: int) -> None:
        del (self._free if block in self._free else self._spare)[block]
