"""Blocks that leave the device come back from host memory, and nothing else does."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Sequence_

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from engines.base import EngineRequest, SamplingParams, TokenEvent
from engines.native.backends.base import NULL_BLOCK, Batch, Capacity, HostCapacity, Move, Step
from engines.native.host.slots import Span
from engines.native.loop.block_manager import BlockManager
from engines.native.loop.block_pool import FULL, WINDOW
from engines.native.loop.core import EngineCore
from engines.native.loop.limits import SchedulerLimits
from engines.native.loop.scheduler import Scheduler
from engines.native.loop.sequence import Sequence
from parts.host_kv.tier import HostTier
from tests.examples import examples

MakeCore = Callable[..., EngineCore]
MakeRequest = Callable[..., EngineRequest]
MakeSequence = Callable[..., Sequence]
RunAll = Callable[[EngineCore], dict[str, list[int]]]
Greedy = Callable[[Sequence_[int], int], list[int]]

PROMPTS = [[number] * 5 + [*range(33)] for number in range(6)]  # 6 x 9 blocks of the full group


def ask(core: EngineCore, run_all: RunAll, request: EngineRequest) -> tuple[list[int], int]:
    """The answer to a request, and how many tokens of its prompt were found."""
    sequence = core.scheduler.add(request)
    return run_all(core)[request.request_id], sequence.num_cached_tokens


def test_evicted_prefixes_come_back(
    make_core: MakeCore, make_request: MakeRequest, run_all: RunAll, greedy_answer: Greedy
) -> None:
    core = make_core(num_blocks=24, num_host_blocks=100)
    for _ in range(3):
        for prompt in PROMPTS:
            answer, num_cached = ask(core, run_all, make_request(prompt, 6))
            assert answer == greedy_answer(prompt, 6)
    assert num_cached == 36
    stats = core.stats()
    assert stats.extras["host_cache_hits"] > 300
    assert stats.extras["host_kv_loaded_bytes"] >= 100 * stats.extras["host_cache_hits"] / 4
    assert 0 < stats.levels["host_kv_used_blocks"] <= stats.levels["host_kv_blocks"] == 100
    without = make_core(num_blocks=24)
    for prompt in PROMPTS * 2:
        _, num_cached = ask(without, run_all, make_request(prompt, 6))
    assert num_cached == 0


def test_answers_under_pressure_are_right(
    make_core: MakeCore, make_request: MakeRequest, run_all: RunAll, greedy_answer: Greedy
) -> None:
    """Conversations side by side that preempt one another, and too little room on the host."""
    core = make_core(num_blocks=40, num_host_blocks=30, max_num_seqs=6)
    chance = random.Random(0)
    contexts = [[number, *range(10)] for number in range(8)]
    for _ in range(6):
        chosen = chance.sample(range(8), 5)
        for number in chosen:
            contexts[number] += chance.choices(range(50), k=chance.randrange(1, 12))
            core.scheduler.add(make_request(contexts[number], 7, request_id=str(number)))
        answers = run_all(core)
        for number in chosen:
            assert answers[str(number)] == greedy_answer(contexts[number], 7)
            contexts[number] += answers[str(number)]
    assert core.stats().num_preemptions > 0
    assert core.stats().extras["host_cache_hits"] > 0


def test_another_tenants_blocks_are_not_found(
    make_core: MakeCore, make_request: MakeRequest, run_all: RunAll
) -> None:
    core = make_core(num_blocks=24, num_host_blocks=100)
    for prompt in PROMPTS:
        ask(core, run_all, make_request(prompt, 2, cache_salt="theirs"))
    for salt, found in (("mine", 0), (None, 0), ("theirs", 36)):
        _, num_cached = ask(core, run_all, make_request(PROMPTS[0], 2, cache_salt=salt))
        assert num_cached == found


def test_a_prefix_that_is_sooner_computed_is_not_copied(
    make_core: MakeCore, make_request: MakeRequest, run_all: RunAll, greedy_answer: Greedy
) -> None:
    core = make_core(num_blocks=24, num_host_blocks=100)
    host = next(option for option in core.options if isinstance(option, HostTier))
    host.capacity = HostCapacity(100, block_bytes=100, load_s=1e9)
    for prompt in PROMPTS * 2:
        answer, num_cached = ask(core, run_all, make_request(prompt, 6))
        assert (answer, num_cached) == (greedy_answer(prompt, 6), 0)


def test_who_leaves_while_blocks_are_copied_disturbs_nobody(
    make_core: MakeCore, make_request: MakeRequest, run_all: RunAll, greedy_answer: Greedy
) -> None:
    core = make_core(num_blocks=24, num_host_blocks=100)
    for prompt in PROMPTS:
        ask(core, run_all, make_request(prompt, 2))
    staying = core.scheduler.add(make_request([9] * 7, 20))
    core.step()
    for prompt in PROMPTS[:3]:
        num_before = core.stats().extras["host_kv_loaded_bytes"]
        leaving = core.scheduler.add(make_request(prompt, 2))
        core.step()
        assert core.stats().extras["host_kv_loaded_bytes"] > num_before
        core.scheduler.remove(leaving)
        core.scheduler.blocks.check_integrity()
    run_all(core)
    assert staying.token_ids == [9] * 7 + greedy_answer([9] * 7, 20)
    for prompt in PROMPTS:
        assert ask(core, run_all, make_request(prompt, 6))[0] == greedy_answer(prompt, 6)


def test_those_who_decode_do_not_wait_for_copies(
    make_core: MakeCore,
    make_request: MakeRequest,
    run_all: RunAll,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The step that copies computes the others' tokens; who waits for the copies comes after it."""
    core = make_core(num_blocks=24, num_host_blocks=100)
    for prompt in PROMPTS:
        ask(core, run_all, make_request(prompt, 2))
    core.scheduler.add(make_request([9] * 7, 20))
    core.step()
    batches = list[Batch]()
    launch = core.backend.launch

    def launch_noted(batch: Batch) -> Step:
        batches.append(batch)
        return launch(batch)

    monkeypatch.setattr(core.backend, "launch", launch_noted)
    sequence = core.scheduler.add(make_request(PROMPTS[0], 2))
    run_all(core)
    copying = [batch for batch in batches if any(not move.is_save for move in batch.moves)]
    assert [batch.needs_moves for batch in copying] == [False]
    steady = copying[0].steady
    assert len(copying[0].rows) + (0 if steady is None else len(steady.slots)) == 1
    assert sequence.num_cached_tokens == 36


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("failing", ["step", "copies"])
def test_after_a_failed_copy_all_is_computed_anew(
    failing: str,
    at: int,
    make_core: MakeCore,
    make_request: MakeRequest,
    run_all: RunAll,
    greedy_answer: Greedy,
) -> None:
    """A step fails for want of memory, before or after it has copied blocks."""
    num_left = -1  # steps until one fails

    def fail() -> None:
        nonlocal num_left
        num_left -= 1
        if num_left == 0:
            raise MemoryError

    def before_step(_spans: Sequence_[Span]) -> None:
        if failing == "step":
            fail()

    def before_moves(moves: Sequence_[Move]) -> None:
        if failing == "copies" and moves:
            fail()

    core = make_core(
        num_blocks=24, num_host_blocks=100, before_step=before_step, before_moves=before_moves
    )
    for prompt in PROMPTS:
        ask(core, run_all, make_request(prompt, 2))
    num_left = at
    asked = {p[0]: core.scheduler.add(make_request(p, 6)) for p in PROMPTS[:3]}
    ended = dict[Sequence, bool]()  # whether it was answered
    while core.has_work:
        for sequence, outcome in core.step():
            if not isinstance(outcome, TokenEvent) or outcome.finish_reason:
                ended[sequence] = isinstance(outcome, TokenEvent)
        core.scheduler.blocks.check_integrity()
    assert num_left <= 0
    assert sum(ended.values()) == 2
    for first, sequence in asked.items():
        if ended[sequence]:
            assert sequence.token_ids[38:] == greedy_answer(PROMPTS[first], 6)
    for prompt in PROMPTS * 2:
        assert ask(core, run_all, make_request(prompt, 6))[0] == greedy_answer(prompt, 6)


class HostMachine(RuleBasedStateMachine):
    """Random sequences; what each block and place holds is followed copy by copy."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.host = HostTier(HostCapacity(9, block_bytes=1, load_s=0.0))
        self.blocks = BlockManager(19, 4, 6)
        scheduler = Scheduler(self.blocks, SchedulerLimits(1000, 8, 64))
        self.host.attach(scheduler, Capacity(19, 4, 1000))
        scheduler.use([self.host])
        self.host.compute_s = lambda start, num: 1.0
        self.live: list[Sequence] = []
        self.on_device: dict[int, bytes] = {}
        self.on_host: dict[int, bytes] = {}

    @rule(
        target=sequences,
        token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=30),
        salt=st.sampled_from([None, "a"]),
    )
    def arrive(self, token_ids: Sequence_[int], salt: str | None) -> Sequence:
        request = EngineRequest("r", tuple(token_ids), SamplingParams(1), cache_salt=salt)
        sequence = Sequence(request, 1000)
        prefix = self.blocks.find_prefix(sequence)
        if self.blocks.has_room_for_all(sequence, prefix):
            self.blocks.attach_prefix(sequence, prefix)
        self.live.append(sequence)
        return sequence

    @rule(sequence=sequences, num_tokens=st.integers(1, 20))
    def compute(self, sequence: Sequence, num_tokens: int) -> None:
        num_left = len(sequence.token_ids) - sequence.num_computed_tokens
        num_tokens = min(num_tokens, num_left)
        if not self.blocks.reserve(sequence, num_tokens):
            return
        self.carry_out()
        first = sequence.num_computed_tokens // 4
        last = (sequence.num_computed_tokens + num_tokens) // 4
        hashes = self.blocks._hasher.hashes(sequence, last)
        for i in range(first, last):
            self.on_device[sequence.full_blocks[i]] = FULL + hashes[i]
            if sequence.window_blocks[i] != NULL_BLOCK:
                self.on_device[sequence.window_blocks[i]] = WINDOW + hashes[i]
        self.blocks.commit(sequence, num_tokens)
        if num_tokens == num_left:
            sequence.append(0)

    @rule(
        token_ids=st.lists(st.integers(0, 1), min_size=8, max_size=30),
        salt=st.sampled_from([None, "a"]),
    )
    def come_and_go(self, token_ids: Sequence_[int], salt: str | None) -> None:
        sequence = self.arrive(token_ids, salt)
        self.compute(sequence, len(token_ids))
        self.leave(sequence)

    @rule()
    def carry_out(self) -> None:
        for block, place, is_save in self.blocks.take_moves():
            if is_save:
                self.on_host[place] = self.on_device[block]
            else:
                self.on_device[block] = self.on_host[place]

    @rule(sequence=sequences)
    def preempt(self, sequence: Sequence) -> None:
        self.blocks.free(sequence)

    @rule()
    def fail(self) -> None:
        lost = self.blocks.lose(())
        for sequence in self.live:
            if self.blocks.has_one_of(sequence, lost):
                self.blocks.free(sequence)
        self.blocks.forget(lost)

    @rule(sequence=consumes(sequences))
    def leave(self, sequence: Sequence) -> None:
        self.blocks.free(sequence)
        self.live.remove(sequence)

    @invariant()
    def books_are_right(self) -> None:
        self.blocks.check_integrity()

    @invariant()
    def blocks_hold_what_they_are_found_by(self) -> None:
        on_device, on_host = dict(self.on_device), dict(self.on_host)
        for block, place, is_save in self.host._moves:
            if is_save:
                on_host[place] = on_device[block]
            else:
                on_device[block] = on_host[place]
        assert all(on_device[block] == key for key, block in self.blocks.pool.cached.items())
        assert all(on_host[place] == key for key, place in self.host._places.items())

    def teardown(self) -> None:
        for sequence in self.live:
            self.blocks.free(sequence)
        self.blocks.check_integrity()
        assert self.blocks.num_free_blocks == self.blocks.num_usable_blocks


TestHostMachine = HostMachine.TestCase
TestHostMachine.settings = examples(60, stateful_step_count=40)
