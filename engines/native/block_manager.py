"""Which KV blocks belong to whom, and which still hold a reusable prefix.

One pool serves both groups of layers: a block holds K/V of either the full-attention
or the sliding layers, or those of all layers where a backend keeps them together. Every block but
NULL_BLOCK is always in exactly one state:

    state        reference count   in the free list        key
    free         0                 yes, taken first        none
    cached-free  0                 yes, oldest use first   until it is handed out again
    referenced   number of users   no                      once it is whole and computed
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import zip_longest

from engines.native.backends.base import NULL_BLOCK
from engines.native.sequence import Sequence

FULL, WINDOW = b"f", b"w"  # key = group + hash of the whole prefix up to the block's end


class IntegrityError(Exception):
    """A block is lost, owned twice or miscounted: a defect of the engine itself."""


class BlockManager:
    """Hands out blocks of the shared pool and finds cached prefixes."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        sliding_window: int | None,
        *,
        is_prefix_caching: bool = True,
        is_answer_apart: bool = False,
    ) -> None:
        """`sliding_window`: None where a block holds K/V of all layers, and no window lets go.

        `is_answer_apart`: what a prompt left is found as a prompt's and what an answer left as that
        place of an answer's, for K/V of one token differ in their last bits.
        """
        self.num_usable_blocks = num_blocks - 1
        self.block_size = block_size
        self.sliding_window = sliding_window
        self.is_prefix_caching = is_prefix_caching
        self._is_answer_apart = is_answer_apart
        self._ref_counts = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        self._cached: dict[bytes, int] = {}  # the inverse of _keys
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._holders: set[Sequence] = set()
        self._coming: dict[bytes, Sequence] = {}  # whole blocks that a sequence will compute

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out now, cached but unreferenced ones included."""
        return len(self._free)

    def num_blocks_to_hold(self, num_tokens: int) -> int:
        """The fewest blocks with which one token at a time reaches num_tokens computed tokens."""
        num_full = -(-num_tokens // self.block_size)
        if self.sliding_window is None:
            return num_full
        num_spanned = -(-(self.sliding_window - 1) // self.block_size) + 1
        return num_full + min(num_full, num_spanned)

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for the next num_tokens tokens of the sequence, wholly or not at all."""
        num_blocks = -(-(sequence.num_scheduled_tokens + num_tokens) // self.block_size)
        num_missing = num_blocks - len(sequence.full_blocks)
        if num_missing <= 0:
            return True
        if self._num_tables * num_missing > len(self._free):
            return False
        self._holders.add(sequence)
        for _ in range(num_missing):
            sequence.full_blocks.append(self._take())
            if self.sliding_window is not None:
                sequence.window_blocks.append(self._take())
        return True

    def num_reservable_tokens(self, sequence: Sequence) -> int:
        """How many next tokens of the sequence the free blocks have room for."""
        num_blocks = len(sequence.full_blocks) + len(self._free) // self._num_tables
        return num_blocks * self.block_size - sequence.num_scheduled_tokens

    def has_room_for_all(self, sequence: Sequence) -> bool:
        """Whether the free blocks suffice to compute every token the sequence has now."""
        num_held = len(sequence.full_blocks) + len(sequence.window_blocks)
        num_held -= sequence.num_released_blocks
        num_needed = self.num_blocks_to_hold(len(sequence.token_ids)) - num_held
        return num_needed <= len(self._free)

    def commit(self, sequence: Sequence, num_tokens: int) -> None:
        """Note that the next num_tokens tokens are computed and stay: offer whole blocks to the
        prefix cache, give back what the window has left behind."""
        sequence.num_computed_tokens += num_tokens
        sequence.num_scheduled_tokens = max(
            sequence.num_scheduled_tokens, sequence.num_computed_tokens
        )
        num_whole = sequence.num_computed_tokens // self.block_size
        if num_whole > sequence.num_registered_blocks and self.is_prefix_caching:
            self._register(sequence, num_whole)
        if self.sliding_window is None:
            return
        first = self._first_window_block(sequence.num_computed_tokens)
        for i in range(sequence.num_released_blocks, first):
            self._release(sequence.window_blocks[i])
            sequence.window_blocks[i] = NULL_BLOCK
        sequence.num_released_blocks = max(first, sequence.num_released_blocks)

    def free(self, sequence: Sequence) -> None:
        """Give back every block of the sequence; nothing of it counts as computed any more."""
        # From the tail on, so that the shared heads of prompts stay cached longest.
        tables = reversed(sequence.full_blocks), reversed(sequence.window_blocks)
        for full, window in zip_longest(*tables, fillvalue=NULL_BLOCK):
            self._release(full)
            if window != NULL_BLOCK:
                self._release(window)
        sequence.full_blocks, sequence.window_blocks = [], []
        sequence.num_computed_tokens = sequence.num_scheduled_tokens = 0
        sequence.num_registered_blocks = sequence.num_released_blocks = 0
        self._holders.discard(sequence)
        self._take_back(sequence, 0)

    def attach_prefix(self, sequence: Sequence) -> int:
        """Give a sequence without blocks the longest usable cached prefix; its length in tokens.

        At least one token stays to be computed, for its logits.
        """
        num_blocks = self._find_prefix(sequence) if self.is_prefix_caching else 0
        if num_blocks == 0:
            return 0
        hashes = sequence.block_hashes
        num_tokens = num_blocks * self.block_size
        sequence.full_blocks = [self._share(FULL + hashes[i]) for i in range(num_blocks)]
        if self.sliding_window is not None:
            first = self._first_window_block(num_tokens)
            sequence.window_blocks = [NULL_BLOCK] * first
            sequence.window_blocks += [
                self._share(WINDOW + hashes[i]) for i in range(first, num_blocks)
            ]
            sequence.num_released_blocks = first
        sequence.num_computed_tokens = sequence.num_scheduled_tokens = num_tokens
        sequence.num_registered_blocks = num_blocks
        self._holders.add(sequence)
        return num_tokens

    def announce(self, sequence: Sequence) -> None:
        """Note that the sequence will compute the rest of its whole blocks."""
        if not self.is_prefix_caching:
            return
        first = len(sequence.full_blocks)
        for block_hash in self._hash_blocks(sequence, self._num_reusable(sequence))[first:]:
            self._coming.setdefault(block_hash, sequence)

    def awaited(self, sequence: Sequence) -> bytes | None:
        """The first block that the sequence does not find, if another will compute it."""
        if not self._coming or not self.is_prefix_caching:
            return None
        found = self._find_prefix(sequence)
        if found == self._num_reusable(sequence):
            return None
        block_hash = sequence.block_hashes[found]
        return block_hash if block_hash in self._coming else None

    def is_coming(self, block_hash: bytes) -> bool:
        """Whether a sequence will compute this block."""
        return block_hash in self._coming

    def forget(self, blocks: Iterable[int]) -> None:
        """Find these blocks no more: the backend has lost what they held. Nobody holds them."""
        for block in blocks:
            key, self._keys[block] = self._keys[block], None
            if key is not None:
                del self._cached[key]
                self._free.move_to_end(block, last=False)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every block is in exactly one of the three states."""
        expected = self._count_references()
        wrong = {
            block: (count, expected[block])
            for block, count in enumerate(self._ref_counts)
            if count != expected[block] or (count == 0) != (block in self._free or block == 0)
        }
        if wrong:
            raise IntegrityError(f"blocks with (counted, true) references out of order: {wrong}")
        keyed = {key: block for block, key in enumerate(self._keys) if key is not None}
        if keyed != self._cached:
            raise IntegrityError("the prefix cache and the keys of the blocks disagree")

    def _count_references(self) -> Counter[int]:
        expected: Counter[int] = Counter()
        for sequence in self._holders:
            expected.update(sequence.full_blocks)
            expected.update(block for block in sequence.window_blocks if block != NULL_BLOCK)
        return expected

    @property
    def _num_tables(self) -> int:
        return 1 if self.sliding_window is None else 2

    def _first_window_block(self, position: int) -> int:
        """The first block that the window of the token at position still sees."""
        assert self.sliding_window is not None
        return max(0, position - self.sliding_window + 1) // self.block_size

    def _take(self) -> int:
        block, _ = self._free.popitem(last=False)
        key = self._keys[block]
        if key is not None:
            del self._cached[key]
            self._keys[block] = None
        self._ref_counts[block] = 1
        return block

    def _share(self, key: bytes) -> int:
        block = self._cached[key]
        if self._ref_counts[block] == 0:
            del self._free[block]
        self._ref_counts[block] += 1
        return block

    def _release(self, block: int) -> None:
        self._ref_counts[block] -= 1
        if self._ref_counts[block] > 0:
            return
        self._free[block] = None
        if self._keys[block] is None:
            self._free.move_to_end(block, last=False)

    def _take_back(self, sequence: Sequence, first: int, end: int | None = None) -> None:
        """The sequence will not compute these blocks: it has, or it never will."""
        for block_hash in sequence.block_hashes[first:end]:
            if self._coming.get(block_hash) is sequence:
                del self._coming[block_hash]

    def _register(self, sequence: Sequence, num_whole: int) -> None:
        hashes = self._hash_blocks(sequence, num_whole)
        self._take_back(sequence, sequence.num_registered_blocks, num_whole)
        for i in range(sequence.num_registered_blocks, num_whole):
            self._offer(FULL + hashes[i], sequence.full_blocks[i])
            if self.sliding_window is not None:
                self._offer(WINDOW + hashes[i], sequence.window_blocks[i])
        sequence.num_registered_blocks = num_whole

    def _offer(self, key: bytes, block: int) -> None:
        # Two sequences may compute the same prefix side by side: the first block stays the one.
        if key not in self._cached:
            self._cached[key] = block
            self._keys[block] = key

    def _find_prefix(self, sequence: Sequence) -> int:
        """The most leading blocks that both groups of layers can go on from."""
        num_blocks = self._num_reusable(sequence)
        hashes = self._hash_blocks(sequence, num_blocks)
        found = 0
        while found < num_blocks and FULL + hashes[found] in self._cached:
            found += 1
        while (missing := next(self._missing_window_blocks(hashes, found), None)) is not None:
            found = missing  # a longer prefix would have this block in its window, too
        return found

    def _num_reusable(self, sequence: Sequence) -> int:
        """Whole blocks, but for the last token, which is computed in any case."""
        if sequence.wants_scores():
            return 0  # cached tokens have no logits
        return (len(sequence.token_ids) - 1) // self.block_size

    def _missing_window_blocks(self, hashes: list[bytes], num_blocks: int) -> Iterator[int]:
        if self.sliding_window is None:
            return
        first = self._first_window_block(num_blocks * self.block_size)
        for i in range(num_blocks - 1, first - 1, -1):
            if WINDOW + hashes[i] not in self._cached:
                yield i

    def _hash_blocks(self, sequence: Sequence, num_blocks: int) -> list[bytes]:
        """Hashes of the first num_blocks blocks, each of everything up to the block's end."""
        hashes, size = sequence.block_hashes, self.block_size
        for i in range(len(hashes), num_blocks):
            parent = hashes[-1] if hashes else _salt_hash(sequence.request.cache_salt)
            tokens = array("q", sequence.token_ids[i * size : (i + 1) * size]).tobytes()
            num_answer = min((i + 1) * size - sequence.num_prompt_tokens, size)
            if self._is_answer_apart and num_answer > 0:
                tokens += num_answer.to_bytes(4)
            hashes.append(blake2b(parent + tokens, digest_size=16).digest())
        return hashes


def _salt_hash(salt: str | None) -> bytes:
    text = b"" if salt is None else b"salt:" + salt.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=16).digest()
