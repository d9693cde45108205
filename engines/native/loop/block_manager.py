"""Which blocks of the pool each sequence has, and what it can reuse of the prefix cache.

A sequence has a table for each group of layers (sequence.py); the pool (block_pool.py) keeps what
no sequence uses any more until its place is needed. Options (option.py) learn what is stored
and dropped, and may find more than the device has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Sequence_
from itertools import chain, zip_longest

from engines.errors import PromptTooLong
from engines.native.backends.base import NULL_BLOCK, Move
from engines.native.loop.block_pool import DEVICE, FULL, WINDOW, BlockHasher, BlockPool, Prefix
from engines.native.loop.coming import ComingBlocks
from engines.native.loop.option import Option, calls
from engines.native.loop.sequence import Sequence


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
        has_separate_answer_keys: bool = False,
    ) -> None:
        """`sliding_window`: None where a block holds K/V of all layers, and no window lets go.

        `has_separate_answer_keys`: a token's K/V in a prompt and in an answer differ in their last
        bits, so blocks of prompts and of answers get different keys.
        """
        self.num_usable_blocks = num_blocks - 1
        self.block_size = block_size
        self.sliding_window = sliding_window
        self.is_prefix_caching = is_prefix_caching
        self.has_separate_answer_keys = has_separate_answer_keys
        self.pool = BlockPool(num_blocks)
        self._hasher = BlockHasher(block_size, has_separate_answer_keys=has_separate_answer_keys)
        self._holders: set[Sequence] = set()
        self._coming = ComingBlocks()
        self.use(())

    def use(self, options: Sequence_[Option]) -> None:
        """Call these options from now on; only while nothing is cached."""
        self._stored, self._evicted = calls(options, "stored"), calls(options, "evicted")
        self.tell_saved, self.tell_removed = calls(options, "saved"), calls(options, "removed")
        self._better, self._bring = calls(options, "better_prefix"), calls(options, "bring")
        self._take_moves, self._lose = calls(options, "take_moves"), calls(options, "lose")
        self._needs_moves, self._faults = calls(options, "needs_moves"), calls(options, "faults")

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out now, cached but unreferenced ones included."""
        return self.pool.num_free

    def num_blocks_to_hold(self, num_tokens: int) -> int:
        """The fewest blocks with which one token at a time reaches num_tokens computed tokens."""
        num_full = -(-num_tokens // self.block_size)
        if self.sliding_window is None:
            return num_full
        num_spanned = -(-(self.sliding_window - 1) // self.block_size) + 1
        return num_full + min(num_full, num_spanned)

    def check_fits(self, sequence: Sequence) -> None:
        """Raise PromptTooLong for a sequence that the blocks cannot hold whole."""
        num_tokens = sequence.max_len - 1  # the last token's K/V are never needed
        num_blocks = self.num_blocks_to_hold(num_tokens)
        if num_blocks > self.num_usable_blocks:
            raise PromptTooLong(
                f"the prompt has {sequence.num_prompt_tokens} tokens and max_tokens is "
                f"{sequence.sampling.max_tokens}: that needs {num_blocks} KV blocks of "
                f"{self.block_size} tokens, and the engine has "
                f"{self.num_usable_blocks}; shorten one of them or raise num_kv_blocks"
            )

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for the next num_tokens tokens of the sequence, wholly or not at all."""
        num_blocks = -(-(sequence.num_scheduled_tokens + num_tokens) // self.block_size)
        num_missing = num_blocks - len(sequence.full_blocks)
        if num_missing <= 0:
            return True
        if self._num_tables * num_missing > self.num_free_blocks:
            return False
        self._holders.add(sequence)
        for _ in range(num_missing):
            sequence.full_blocks.append(self._take())
            if self.sliding_window is not None:
                sequence.window_blocks.append(self._take())
        return True

    def num_reservable_tokens(self, sequence: Sequence) -> int:
        """How many next tokens of the sequence the free blocks have room for."""
        num_blocks = len(sequence.full_blocks) + self.num_free_blocks // self._num_tables
        return num_blocks * self.block_size - sequence.num_scheduled_tokens

    def has_room_for_all(
        self, sequence: Sequence, prefix: Prefix, others: Iterable[Sequence] = ()
    ) -> bool:
        """Whether every token of a sequence without blocks can be computed behind this prefix,
        and every token that the others have now."""
        num_found = sum(key in self.pool.cached for key in prefix.keys)
        num_needed = self._num_missing(sequence) + sum(map(self._num_missing, others))
        return num_needed - num_found <= self.pool.num_free_beside(prefix.keys)

    def _num_missing(self, sequence: Sequence) -> int:
        """Blocks that the sequence will take until all its tokens are computed."""
        num_held = len(sequence.full_blocks) + len(sequence.window_blocks)
        num_held -= sequence.num_released_blocks
        return max(self.num_blocks_to_hold(len(sequence.token_ids)) - num_held, 0)

    def commit(self, sequence: Sequence, num_tokens: int) -> None:
        """Note that the next num_tokens tokens are computed and stay: offer whole blocks to the
        prefix cache, give back what the window has left behind."""
        sequence.num_computed_tokens += num_tokens
        num_computed = sequence.num_computed_tokens
        sequence.num_scheduled_tokens = max(sequence.num_scheduled_tokens, num_computed)
        num_whole = num_computed // self.block_size
        if num_whole > sequence.num_registered_blocks and self.is_prefix_caching:
            self._register(sequence, num_whole)
        if self.sliding_window is None:
            return
        first = self._first_window_block(num_computed)
        for i in range(sequence.num_released_blocks, first):
            is_behind = not self._ends_prefix(sequence, i)
            self.pool.release(sequence.window_blocks[i], is_behind=is_behind)
            sequence.window_blocks[i] = NULL_BLOCK
        sequence.num_released_blocks = max(first, sequence.num_released_blocks)

    def next_commit(self, sequence: Sequence) -> int:
        """How many computed tokens it has when there is something to register or give back."""
        size = self.block_size
        whole = (sequence.num_computed_tokens // size + 1) * size
        if self.sliding_window is None:
            return whole
        return min(whole, (sequence.num_released_blocks + 1) * size + self.sliding_window - 1)

    def free(self, sequence: Sequence) -> None:
        """Give back every block of the sequence; nothing of it counts as computed any more."""
        # From the tail on, so that the shared heads of prompts stay cached longest.
        tables = reversed(sequence.full_blocks), reversed(sequence.window_blocks)
        for full, window in zip_longest(*tables, fillvalue=NULL_BLOCK):
            self.pool.release(full)
            if window != NULL_BLOCK:
                self.pool.release(window)
        sequence.full_blocks, sequence.window_blocks = [], []
        sequence.num_computed_tokens = sequence.num_scheduled_tokens = 0
        sequence.num_registered_blocks = sequence.num_released_blocks = 0
        sequence.num_prefix_blocks = 0
        self._holders.discard(sequence)
        self._coming.discard(sequence, 0)

    def find_prefix(self, sequence: Sequence) -> Prefix:
        """The longest usable prefix of a sequence: cached on the device, or what an option has
        beside it. At least one token stays to be computed."""
        if not self.is_prefix_caching:
            return Prefix()
        prefix = self.cached_prefix(sequence)
        for better in self._better:
            prefix = better(sequence, prefix)
        return prefix

    def attach_prefix(self, sequence: Sequence, prefix: Prefix | None = None) -> int:
        """Give a sequence without blocks this prefix, or the one that is found; its length in
        tokens."""
        prefix = self.find_prefix(sequence) if prefix is None else prefix
        num_blocks, first = prefix.num_blocks, prefix.num_blocks - len(prefix.window)
        if num_blocks == 0:
            return 0
        blocks = self._hold(sequence, prefix)
        sequence.full_blocks = blocks[:num_blocks]
        if self.sliding_window is not None:
            sequence.window_blocks = [NULL_BLOCK] * first + blocks[num_blocks:]
            sequence.num_released_blocks = first
        num_tokens = num_blocks * self.block_size
        sequence.num_computed_tokens = sequence.num_scheduled_tokens = num_tokens
        sequence.num_registered_blocks = sequence.num_prefix_blocks = num_blocks
        self._holders.add(sequence)
        return num_tokens

    def cached_prefix(self, sequence: Sequence) -> Prefix:
        """The longest usable prefix that is cached on the device."""
        return self.prefix(sequence, self.pool.cached.__contains__)

    def prefix_keys(self, sequence: Sequence) -> dict[bytes, int]:
        """All keys that a prefix of the sequence can have, each with the number of its block."""
        num_blocks = self._num_reusable(sequence)
        hashes = self._hasher.hashes(sequence, num_blocks)[:num_blocks]
        groups = (FULL, WINDOW)[: self._num_tables]
        return {group + each: i for i, each in enumerate(hashes) for group in groups}

    def blocks_of(self, keys: Iterable[bytes]) -> list[int] | None:
        """The device's blocks with these keys; None if one is not there any more."""
        found = [self.pool.cached.get(key, NULL_BLOCK) for key in keys]
        return None if NULL_BLOCK in found else found

    def take_in(self, sequence: Sequence, keys: list[bytes]) -> dict[int, int] | None:
        """Blocks for those of these `prefix_keys` that are not cached, by their place in `keys`;
        None where not all have room.

        They are found from now on, so the caller has their content copied before the next step.
        """
        places = [place for place, key in enumerate(keys) if key not in self.pool.cached]
        if len(places) > self.num_free_blocks:
            return None
        taken = {place: self.fill(keys[place]) for place in places}
        for block in taken.values():
            self.pool.release(block)
        if self._stored:
            index_of = self.prefix_keys(sequence)
            for key in (keys[place] for place in taken):
                self._stored(sequence, index_of[key], key)
        return taken

    def fill(self, key: bytes) -> int:
        """A block that an option fills; it is found under this key from now on."""
        block = self._take()
        self.pool.offer(key, block)
        return block

    def has_one_of(self, sequence: Sequence, blocks: set[int]) -> bool:
        return bool(blocks) and not blocks.isdisjoint(sequence.full_blocks + sequence.window_blocks)

    def needs_moves(self, sequences: Iterable[Sequence]) -> bool:
        """Whether a step of these sequences reads what its own moves bring."""
        if not self._needs_moves:
            return False
        sequences = [*sequences]
        return any(needs(sequences) for needs in self._needs_moves)

    def take_moves(self) -> tuple[Move, ...]:
        """The copies that the options want, in order, for the next step."""
        return tuple(move for take in self._take_moves for move in take())

    def lose(self, moves: Iterable[Move]) -> set[int]:
        """Take these copies and those to come as not made; the blocks that they would have filled.

        No sequence may hold these blocks when `forget` gets them, and that has to follow.
        """
        moves = (*moves, *self.take_moves())
        if moves:
            self._lose()
        return {move.block for move in moves if not move.is_save}

    def announce(self, sequence: Sequence) -> None:
        """Note that the sequence will compute the rest of its whole blocks."""
        if not self.is_prefix_caching:
            return
        first = len(sequence.full_blocks)
        hashes = self._hasher.hashes(sequence, self._num_reusable(sequence))
        self._coming.add(sequence, hashes[first:])

    def awaited(self, sequence: Sequence) -> bytes | None:
        """The first block that the sequence does not find, if another will compute it."""
        if not self._coming or not self.is_prefix_caching:
            return None
        found = self.find_prefix(sequence).num_blocks
        if found == self._num_reusable(sequence):
            return None
        block_hash = sequence.block_hashes[found]
        return block_hash if self._coming.has_for(sequence, block_hash) else None

    def is_coming(self, block_hash: bytes) -> bool:
        """Whether a sequence will compute this block."""
        return block_hash in self._coming

    def forget(self, blocks: Iterable[int]) -> None:
        """Stop finding these blocks: the backend has lost their content. No sequence holds them."""
        for block in blocks:
            if (key := self.pool.forget(block)) is not None:
                self.tell_removed(key, DEVICE)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every block is in exactly one of the three states."""
        faults = self.pool.faults(self._count_references())
        for fault in chain(faults, *(of() for of in self._faults)):
            raise IntegrityError(fault)

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
        block, key, is_evicted = self.pool.take()
        if key is not None:
            if is_evicted:
                self._evicted(key, block)
            self.tell_removed(key, DEVICE)
        return block

    def _hold(self, sequence: Sequence, prefix: Prefix) -> list[int]:
        """The blocks of a prefix, shared or brought by an option."""
        held = {key: self.pool.share(key) for key in prefix.keys if key in self.pool.cached}
        missing = [key for key in prefix.keys if key not in held]
        if missing:
            for bring in self._bring:
                held.update(bring([key for key in missing if key not in held]))
            first = prefix.num_blocks - len(prefix.window)
            index_of = {key: index for index, key in enumerate(prefix.full)}
            index_of |= {key: index for index, key in enumerate(prefix.window, first)}
            for key in missing:
                self._stored(sequence, index_of[key], key)
        return [held[key] for key in prefix.keys]

    def _register(self, sequence: Sequence, num_whole: int) -> None:
        hashes = self._hasher.hashes(sequence, num_whole)
        self._coming.discard(sequence, sequence.num_registered_blocks, num_whole)
        groups = [(FULL, sequence.full_blocks), (WINDOW, sequence.window_blocks)]
        for group, table in groups[: self._num_tables]:
            for i in range(sequence.num_registered_blocks, num_whole):
                self.pool.offer(group + hashes[i], table[i])
                if self._stored:
                    self._stored(sequence, i, group + hashes[i])
        sequence.num_registered_blocks = num_whole

    def prefix(self, sequence: Sequence, has: Callable[[bytes], bool]) -> Prefix:
        """The most leading blocks that both groups of layers can continue from, of those that it
        `has`."""
        num_blocks, size = self._num_reusable(sequence), self.block_size
        hashes = self._hasher.hashes(sequence, num_blocks)
        found = 0
        while found < num_blocks and has(FULL + hashes[found]):
            found += 1
        first = found  # of the window; a longer prefix would have a missing block in it, too
        while self.sliding_window is not None and first > self._first_window_block(found * size):
            first -= 1
            found = found if has(WINDOW + hashes[first]) else first
        return Prefix(
            [FULL + each for each in hashes[:found]],
            [WINDOW + each for each in hashes[first:found]],
        )

    def _num_reusable(self, sequence: Sequence) -> int:
        """Whole blocks, but for the last token, which is computed in any case."""
        if sequence.wants_scores():
            return 0  # cached tokens have no logits
        return (len(sequence.token_ids) - 1) // self.block_size

    def _ends_prefix(self, sequence: Sequence, index: int) -> bool:
        """Whether a window behind the prompt, or behind the prefix that was found, sees a block. A
        conversation's next turn may leave a prompt's last tokens out."""
        ends = sequence.num_prompt_tokens // self.block_size, sequence.num_prefix_blocks
        firsts = (self._first_window_block(max(end - 1, 0) * self.block_size) for end in ends)
        return any(first <= index < end for first, end in zip(firsts, ends, strict=True))
