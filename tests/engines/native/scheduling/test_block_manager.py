"""Blocks are shared, kept and given back without losing or doubling one."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Sequence_

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from engines.base import EngineRequest, SamplingParams
from engines.native.backends.base import NULL_BLOCK
from engines.native.loop.block_manager import BlockManager, IntegrityError
from engines.native.loop.sequence import Sequence
from tests.examples import examples

MakeSequence = Callable[..., Sequence]


@pytest.fixture
def blocks() -> BlockManager:
    """40 blocks of 4 tokens, a window of 6."""
    return BlockManager(41, 4, 6)


def compute(blocks: BlockManager, sequence: Sequence, num_tokens: int) -> None:
    assert blocks.reserve(sequence, num_tokens)
    blocks.commit(sequence, num_tokens)
    blocks.check_integrity()


def test_the_window_group_keeps_only_its_window(
    blocks: BlockManager, make_sequence: MakeSequence
) -> None:
    sequence = make_sequence(range(41))
    for num_computed in range(1, 41):
        compute(blocks, sequence, 1)
        first_seen = max(0, num_computed - 6 + 1)  # by the token at position num_computed
        kept = [i for i, block in enumerate(sequence.window_blocks) if block != NULL_BLOCK]
        assert kept == list(range(first_seen // 4, -(-num_computed // 4)))
    assert len(sequence.full_blocks) == 10
    assert blocks.num_free_blocks == 40 - 10 - len(kept)


def test_a_reservation_is_whole_or_nothing(
    blocks: BlockManager, make_sequence: MakeSequence
) -> None:
    sequence = make_sequence(range(100))
    assert not blocks.reserve(sequence, 81)
    assert blocks.num_free_blocks == 40
    assert blocks.num_reservable_tokens(sequence) == 80
    assert blocks.reserve(sequence, 80)
    assert blocks.num_free_blocks == 0


def test_a_running_sequence_shares_its_prefix(
    blocks: BlockManager, make_sequence: MakeSequence
) -> None:
    first, second = make_sequence(range(20)), make_sequence([*range(18), 7, 7])
    compute(blocks, first, 20)
    num_free = blocks.num_free_blocks
    # Up to 16, the window of the token at 16 begins at 11, in block 2; block 2 was given
    # back by the first sequence, whose own window begins at 15, but is not reused yet.
    assert blocks.attach_prefix(second) == 16
    assert second.full_blocks == first.full_blocks[:4]
    assert second.window_blocks[:2] == [NULL_BLOCK] * 2
    assert second.window_blocks[3] == first.window_blocks[3]
    assert blocks.num_free_blocks == num_free - 1
    blocks.check_integrity()
    for sequence in (first, second):
        blocks.free(sequence)
        blocks.check_integrity()
    assert blocks.num_free_blocks == 40


def test_an_answer_is_found_as_that_place_of_an_answer_where_bits_matter(
    make_sequence: MakeSequence,
) -> None:
    """A prompt of 8 tokens and an answer of 8."""
    blocks = BlockManager(41, 4, None, has_separate_answer_keys=True)
    first, longer = make_sequence(range(8)), make_sequence(range(20))
    first.token_ids += range(8, 20)
    compute(blocks, first, 16)
    assert blocks.attach_prefix(longer) == 8
    again = make_sequence(range(8))
    again.token_ids += range(8, 20)
    assert blocks.attach_prefix(again) == 16


def test_a_prefix_without_its_window_is_no_hit(make_sequence: MakeSequence) -> None:
    blocks = BlockManager(13, 4, 6)
    first = make_sequence(range(20))
    for _ in range(20):
        compute(blocks, first, 1)
    taker = make_sequence(range(100, 108))
    assert blocks.num_free_blocks == 5
    compute(blocks, taker, 8)  # two fresh blocks, and the first's window blocks 0 and 1
    short = make_sequence(range(9))  # would end in block 2, its window in blocks 0 and 1
    assert blocks.attach_prefix(short) == 0
    longer = make_sequence([*range(20), 5])
    assert blocks.attach_prefix(longer) == 20
    blocks.check_integrity()


def test_the_least_recently_used_block_goes_first(make_sequence: MakeSequence) -> None:
    blocks = BlockManager(9, 4, 6)
    old, new = make_sequence([1] * 5), make_sequence([2] * 5)
    for sequence in (old, new):
        compute(blocks, sequence, 4)
        blocks.free(sequence)
    compute(blocks, make_sequence([3] * 12), 12)  # six blocks: four never used and the old ones
    assert blocks.attach_prefix(make_sequence([1] * 5)) == 0
    assert blocks.attach_prefix(make_sequence([2] * 5)) == 4


def test_a_conversation_loses_its_end_first(make_sequence: MakeSequence) -> None:
    """The head of a prefix is what others find; a block behind a lost one is of no use."""
    blocks = BlockManager(11, 4, None)
    old, new, other = make_sequence(range(25)), make_sequence(range(25)), make_sequence([7] * 28)
    compute(blocks, old, 24)
    blocks.free(old)
    compute(blocks, other, 28)  # of 10 blocks; 4 were free
    assert blocks.attach_prefix(new) == 12


def test_two_that_computed_the_same_do_not_clash(
    blocks: BlockManager, make_sequence: MakeSequence
) -> None:
    twins = [make_sequence(range(12)) for _ in range(2)]
    for twin in twins:
        compute(blocks, twin, 12)
    blocks.free(twins[0])
    blocks.check_integrity()
    third = make_sequence(range(13))
    assert blocks.attach_prefix(third) == 12
    blocks.free(twins[1])
    blocks.free(third)
    blocks.check_integrity()
    assert blocks.num_free_blocks == 40


def test_a_forgotten_block_is_found_no_more_and_used_first(make_sequence: MakeSequence) -> None:
    blocks = BlockManager(9, 4, None)
    first = make_sequence(range(20))
    compute(blocks, first, 16)
    second = first.full_blocks[1]
    blocks.free(first)
    blocks.forget([second])
    again = make_sequence(range(20))
    assert blocks.attach_prefix(again) == 4
    assert blocks.reserve(again, 4)
    assert again.full_blocks[1] == second
    blocks.check_integrity()


@pytest.mark.parametrize("fault", ["lost", "twice", "cache"])
def test_integrity_check_finds_faults(
    fault: str, blocks: BlockManager, make_sequence: MakeSequence
) -> None:
    sequence = make_sequence(range(12))
    compute(blocks, sequence, 12)
    if fault == "lost":
        sequence.full_blocks.pop()
    elif fault == "twice":
        blocks.pool._free[sequence.full_blocks[0]] = None
    else:
        blocks.pool._keys[sequence.full_blocks[0]] = None
    with pytest.raises(IntegrityError):
        blocks.check_integrity()


class BlockManagerMachine(RuleBasedStateMachine):
    """Random sequences over few tokens, so that prefixes often meet."""

    sequences = Bundle("sequences")
    window: int | None = 6

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(31, 4, self.window)
        self.live: list[Sequence] = []

    @rule(
        target=sequences,
        token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=40),
        salt=st.sampled_from([None, "a"]),
    )
    def arrive(self, token_ids: Sequence_[int], salt: str | None) -> Sequence:
        request = EngineRequest("r", tuple(token_ids), SamplingParams(1), cache_salt=salt)
        sequence = Sequence(request, 1000)
        num_cached = self.blocks.attach_prefix(sequence)
        assert num_cached == sequence.num_computed_tokens < len(token_ids)
        self.live.append(sequence)
        return sequence

    @rule(sequence=sequences, num_tokens=st.integers(1, 20), token_id=st.integers(0, 1))
    def compute(self, sequence: Sequence, num_tokens: int, token_id: int) -> None:
        num_left = len(sequence.token_ids) - sequence.num_computed_tokens
        num_tokens = min(num_tokens, num_left)
        room, before = self.blocks.num_reservable_tokens(sequence), self.blocks.num_free_blocks
        is_done = self.blocks.reserve(sequence, num_tokens)
        assert is_done == (num_tokens <= room)
        if not is_done:
            assert self.blocks.num_free_blocks == before
            return
        self.blocks.commit(sequence, num_tokens)
        if num_tokens == num_left:
            sequence.append(token_id)

    @rule(sequence=sequences)
    def preempt(self, sequence: Sequence) -> None:
        self.blocks.free(sequence)
        self.blocks.attach_prefix(sequence)

    @rule(block=st.integers(1, 30))
    def lose(self, block: int) -> None:
        held = {b for s in self.live for b in (*s.full_blocks, *s.window_blocks)}
        if block not in held:
            self.blocks.forget([block])

    @rule(
        token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=40),
        salt=st.sampled_from([None, "a"]),
        places=st.sets(st.integers(0, 19)),
    )
    def take_in(self, token_ids: Sequence_[int], salt: str | None, places: set[int]) -> None:
        """Blocks of a prefix that another engine computed, some or all."""
        request = EngineRequest("r", tuple(token_ids), SamplingParams(1), cache_salt=salt)
        sequence = Sequence(request, 1000)
        keys = [key for i, key in enumerate(self.blocks.prefix_keys(sequence)) if i in places]
        missing = [key for key in keys if self.blocks.blocks_of([key]) is None]
        num_free = self.blocks.num_free_blocks
        taken = self.blocks.take_in(sequence, keys)
        assert (taken is None) == (len(missing) > num_free)
        assert self.blocks.num_free_blocks == num_free
        if taken is not None:
            assert [keys[place] for place in taken] == missing
            assert self.blocks.blocks_of(missing) == [*taken.values()]

    @rule(sequence=consumes(sequences))
    def leave(self, sequence: Sequence) -> None:
        self.blocks.free(sequence)
        self.live.remove(sequence)

    @invariant()
    def blocks_are_whole(self) -> None:
        self.blocks.check_integrity()
        for sequence in self.live:
            window = [b for b in sequence.window_blocks if b != NULL_BLOCK]
            num_seen = -(-5 // 4) + 1  # blocks that a window of 6 can touch
            assert len(window) <= num_seen
            assert len(set(sequence.full_blocks)) == len(sequence.full_blocks)

    def teardown(self) -> None:
        for sequence in self.live:
            self.blocks.free(sequence)
        self.blocks.check_integrity()
        assert self.blocks.num_free_blocks == self.blocks.num_usable_blocks


class TogetherMachine(BlockManagerMachine):
    """The same where a block holds K/V of all layers."""

    window = None

    @invariant()
    def there_is_one_table(self) -> None:
        assert not any(sequence.window_blocks for sequence in self.live)


TestBlockManagerMachine = BlockManagerMachine.TestCase
TestTogetherMachine = TogetherMachine.TestCase
TestBlockManagerMachine.settings = TestTogetherMachine.settings = examples(
    60, stateful_step_count=40
)
