"""Which sequences compute what in the next step.

Waiting sequences are admitted by priority, then the shortest first as far as those that they pass
allow it (engines/queueing/own_order.py); tenants are told apart before the engine (admission.py).
An admitted sequence's rank is (priority, number of its first admission); lower goes first
everywhere. A step takes the sequences that need one token, then as much prefill as keeps it within
the longest gap between two tokens (step_plan.py). Every other step keeps half of that for the
oldest prompt that is being read, so that it continues beside short ones; the rest is for prompts
that end in this step and for those that wait. When blocks run out, the sequence of the highest rank
is preempted, and waits before all new ones of its priority.

The step before may still be computed when a step is scheduled. So a chunk is frozen when it is
made, and only accept() and cancel() tell what became of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Sequence_
from functools import partial
from itertools import count
from typing import Final

from engines.base import EngineRequest, TokenEvent
from engines.native.backends.base import Move, Sampled
from engines.native.grammar.compiler import Guide
from engines.native.loop.block_manager import BlockManager
from engines.native.loop.bulk import Bulk, is_prompt
from engines.native.loop.coming import StepTurn, WaitingSequences
from engines.native.loop.drafting import Drafting
from engines.native.loop.limits import SchedulerCounters, SchedulerLimits
from engines.native.loop.option import Option, calls
from engines.native.loop.running import RunningSequences
from engines.native.loop.sequence import Sequence, much_shorter, rank, shortest
from engines.native.loop.steady import Steady, SteadyStep
from engines.native.loop.step_plan import Chunk, StepPlan, allowed_gap_s, next_chunk
from engines.native.step_costs import StepCosts, StepWork, assumed_costs

_MOST_UNFINISHED: Final = 4  # prompts that are too long for a step and hold blocks


class Scheduler:
    """Holds every unfinished sequence, waiting or running, and shares out the blocks."""

    def __init__(
        self,
        blocks: BlockManager,
        limits: SchedulerLimits,
        costs: StepCosts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`costs`: the times of steps; defaults if nothing was measured."""
        self.blocks = blocks
        self.limits = limits
        self.costs = costs or assumed_costs(limits.max_num_seqs, limits.max_num_batched_tokens)
        self._clock = clock
        self.counters = SchedulerCounters()
        most_ahead = 2 * limits.max_num_batched_tokens
        self.waiting = WaitingSequences(blocks.awaited, blocks.is_coming, most_ahead)
        self.running = RunningSequences(limits.max_num_seqs)
        self.steady = Steady(blocks)  # of those that run
        self.bulk = Bulk(limits.max_token_gap_s)
        self._out: set[Sequence] = set()  # bulk that sits the step out
        self.takes_steady = False  # the backend does
        self.num_in_flight = 0  # steps that are scheduled and not yet taken in
        self._admissions = count()
        self._num_planned = 0  # steps
        self.planned = StepWork()  # of the last step
        self.use(())

    def use(self, options: Sequence_[Option]) -> None:
        """Call these options from now on, in this order; only while there is no work."""
        self.blocks.use(options)
        self._gap_s, self._is_full = calls(options, "gap_s"), calls(options, "is_full")
        self._planned, self._defers = calls(options, "planned"), calls(options, "defers")
        self._drafting = Drafting(options, self.limits.max_drafts)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(
        self,
        request: EngineRequest,
        guide: Guide | None = None,
        hashes: Iterable[bytes] = (),
        num_cached: int = 0,
    ) -> Sequence:
        """Queue a request that `check_request` let pass; raises PromptTooLong.

        `hashes`: of its first blocks, as far as they are known; `num_cached`: tokens that were
        cached when it was prepared.
        """
        sequence = Sequence(request, self.limits.max_model_len, guide, self._clock())
        sequence.block_hashes = [*hashes]
        self.blocks.check_fits(sequence)
        self.waiting.add(sequence, num_cached)
        self.bulk.note_arrival(sequence, sequence.arrived_s)
        return sequence

    def schedule(self) -> tuple[list[Chunk], SteadyStep | None]:
        """Choose the next step's chunks and reserve their blocks.

        Empty only if there is no work, or all of it waits for a step that is not collected.
        """
        self.steady.grow(self.num_in_flight)
        step = self._plan_beside_bulk() if self.bulk.num else self._plan()
        if step is None:
            return [], None
        self.planned = step.work
        self._planned(self.costs.seconds(step.work))
        chunks = [*step.chunks.values()]
        for chunk in chunks:
            chunk.schedule()
        steady = self.steady.launch()
        self.num_in_flight += bool(chunks or steady)
        return chunks, steady

    def _plan_beside_bulk(self) -> StepPlan | None:
        """Plan a step without bulk if another's client waits for its first text, or else with as
        much bulk as is due."""
        bulk, running = self.bulk, self.running
        has_others = len(running) + len(self.waiting) > bulk.num
        is_short = bulk.is_short(self._clock(), has_others=has_others)
        has_prompt = has_others and self._has_urgent_prompt()
        if bulk.sits_out(has_prompt=has_prompt):
            step = self._plan_without({each for each in running if each.is_bulk}, StepTurn.URGENT)
            if step is None:
                return None
            served = [*step.chunks, *self.steady.sequences]
            bulk.note_out(is_vain=not any(is_prompt(each) for each in served))
            if step.chunks or self.steady:
                return step
        if is_short and self.num_in_flight:
            return None  # what comes meanwhile would wait for two steps
        is_turn = bulk.note_in(has_prompt=has_prompt)
        prompts = {each for each in running if is_prompt(each)} if is_turn else set()
        turn = StepTurn.BULK if is_turn else StepTurn.ALL
        if not is_short:
            return self._plan_without(prompts, turn)
        has_more = bulk.num > sum(each.is_bulk for each in running)
        has_room = has_more and len(running) < self.limits.max_num_seqs
        out = bulk.out_of_short(running, self.costs, has_room=has_room)
        if bulk.is_reading:
            step = self._plan_without(out | prompts, turn, bulk.short_s)
            if step is None or step.chunks or self.steady:
                return step
            bulk.note_unread()
            out = bulk.out_of_short(running, self.costs, has_room=has_room)
        return self._plan_without(out, StepTurn.URGENT, bulk.short_s)

    def _has_urgent_prompt(self) -> bool:
        if any(is_prompt(each) and each.num_schedulable_tokens for each in self.running):
            return True
        return len(self.running) < self.limits.max_num_seqs and self.waiting.has_urgent

    def _plan_without(
        self, out: set[Sequence], turn: StepTurn, max_gap_s: float | None = None
    ) -> StepPlan | None:
        self.steady.leave(out, self.num_in_flight)
        self._out = out
        try:
            return self._plan(turn, max_gap_s)
        finally:
            self._out = set()

    def _plan(
        self, turn: StepTurn = StepTurn.ALL, max_gap_s: float | None = None
    ) -> StepPlan | None:
        """Plan a step; None if it waits for one that is not collected.

        `max_gap_s`: instead of the usual.
        """
        decoding, prefilling = self._by_phase()
        has_pending = any(sequence.num_pending_tokens for sequence in decoding)
        has_pending |= bool(self.steady and self.num_in_flight)
        all_decoding = self.steady.sequences + decoding
        if self._drafting.waits(decoding, all_decoding, has_pending=has_pending):
            return None
        self._num_planned += 1
        gap_s = max_gap_s or self._allowed_gap_s(decoding, prefilling)
        for left_of in self._gap_s:
            gap_s = None if gap_s is None else left_of(gap_s)
        is_oldest_turn = self._num_planned % 2 == 0
        most = self.limits.max_num_batched_tokens
        step = StepPlan(most, gap_s, self.costs, is_oldest_turn=is_oldest_turn)
        step.turn, step.is_short = turn, max_gap_s is not None
        drafts = self._drafting.propose(all_decoding, has_pending=has_pending)
        for sequence in self._others(decoding, step, is_drafting=bool(drafts)):
            if step.num_left > 0 and sequence not in step.preempted:
                self._decode(sequence, step, drafts.get(sequence, ()))
        step.end_decoding(len(prefilling) + self.waiting.num_queued)
        self._prefill(prefilling, step)
        return step

    def _allowed_gap_s(self, decoding: list[Sequence], prefilling: list[Sequence]) -> float | None:
        prompts = [*prefilling, *self.waiting.first]
        if decoding:  # by rank; what is less urgent lengthens no gap of theirs
            prompts = [each for each in prompts if each.rank[0] <= decoding[0].rank[0]]
        return allowed_gap_s(self.limits.max_token_gap_s, prompts, self._clock())

    def _by_phase(self) -> tuple[list[Sequence], list[Sequence]]:
        """Those that need one token, which go first, and those whose prompt is being read."""
        idle = (each for each in self.running if not (each.is_steady or each.is_held))
        nums = [(each, each.num_schedulable_tokens) for each in idle if each not in self._out]
        return [each for each, num in nums if num == 1], [each for each, num in nums if num > 1]

    def _others(
        self, decoding: list[Sequence], step: StepPlan, *, is_drafting: bool
    ) -> list[Sequence]:
        """Those that decode one by one; the steady ones are in the step, unless drafts are."""
        steady = self.steady
        if not self.takes_steady:
            return decoding
        if is_drafting or len(self.running) > step.num_left:
            steady.leave(steady.sequences, self.num_in_flight)
            return self._by_phase()[0]
        steady.join([each for each in decoding if steady.may_join(each, self.num_in_flight)])
        step.take_steady(len(steady), steady.context)
        return [sequence for sequence in decoding if not sequence.is_steady]

    def accept(self, chunk: Chunk, sampled: Sampled | None) -> TokenEvent | None:
        """Take in a collected chunk; `sampled` is what it brought if it has a result.

        Chunks come in the order of their steps. None if there is no new token to tell of.
        """
        sequence = chunk.sequence
        if sequence.is_ended:
            return None
        if sampled is not None and sampled.prompt_logprobs is not None:
            sequence.prompt_logprobs.append(sampled.prompt_logprobs)
        if sampled is None or not chunk.is_last:
            self._commit(sequence, chunk.end)
            return None
        sequence.num_pending_tokens -= 1
        sequence.is_verifying = False
        if chunk.drafts:
            right = [1] * (len(sampled.token_ids) - 1)
            self.counters.count_drafts(1, len(chunk.drafts), right)
        token_ids, finish_reason = sequence.extend(sampled.token_ids)
        self._commit(sequence, chunk.end + len(token_ids) - 1)
        if finish_reason is not None:
            self.remove(sequence)
        self.counters.generated_tokens += len(token_ids)
        return sequence.event(token_ids, sampled.logprobs, finish_reason)

    def cancel(self, chunks: list[Chunk], moves: tuple[Move, ...] = ()) -> None:
        """Take chunks and copies of a failed step as never made; those of later steps come first.

        A sequence that holds a block that was to be copied from the host begins again.
        """
        self.steady.leave(self.steady.sequences, self.num_in_flight)
        self.num_in_flight -= 1
        for chunk in chunks:
            chunk.cancel()
        lost = self.blocks.lose(moves)
        for sequence in [s for s in self.running if self.blocks.has_one_of(s, lost)]:
            self._requeue(sequence)
        self.blocks.forget(lost)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence and free its blocks; nothing happens if it has ended already."""
        self.bulk.num -= sequence.is_bulk and not sequence.is_ended
        sequence.is_ended = True
        self.steady.leave([sequence], self.num_in_flight)
        if sequence.slot is not None:
            self.running.remove(sequence)
        self.waiting.remove(sequence)
        self.blocks.free(sequence)

    def _commit(self, sequence: Sequence, end: int) -> None:
        """Keep the K/V before `end`; K/V of wrong drafts are overwritten later."""
        if sequence.slot is None:
            return  # preempted after the step was launched: its blocks are others' by now
        self.blocks.commit(sequence, end - sequence.num_computed_tokens)

    def _decode(self, sequence: Sequence, step: StepPlan, drafts: tuple[int, ...]) -> None:
        """Reserve room for the sequence's next token and its drafts; preempts, at worst itself."""
        drafts = self._drafting.fitting(sequence, drafts, step.num_left)
        if not drafts or not self.blocks.reserve(sequence, 1 + len(drafts)):
            drafts = ()
            if not self._reserve(sequence, 1, step):
                return
        start = sequence.num_scheduled_tokens
        step.take(Chunk(sequence, start, start + 1, True, drafts))

    def _prefill(self, prefilling: list[Sequence], step: StepPlan) -> None:
        """Share what is left of the step among the prompts that are being read and those that wait.

        The oldest has its part kept, and takes last what is left. Meanwhile those continue, and
        start, whose prompts end in this step, the shortest first.
        """
        if step.is_oldest_turn and prefilling and (prefilling[1:] or self.waiting):
            step.reserve_share(prefilling[0])
        later = prefilling[:1]
        for sequence in sorted(prefilling[1:], key=shortest):
            self._schedule_or_defer(sequence, step, later)
        arriving = self._admit(step, later, [*prefilling])
        if not step.is_oldest_turn:
            for sequence in much_shorter(later):
                self._schedule(sequence, step)
                later.remove(sequence)
        step.release_share()
        for sequence in sorted(later, key=rank):
            self._schedule(sequence, step)
        if not step.chunks and not self.steady:  # nothing is computed meanwhile
            for sequence in arriving:
                self._schedule(sequence, step)

    def _schedule_or_defer(self, sequence: Sequence, step: StepPlan, later: list[Sequence]) -> None:
        if not later and self.waiting and not step.ends(sequence):
            step.reserve_share(sequence)
        if step.is_tight or step.ends(sequence):
            self._schedule(sequence, step)
        else:
            later.append(sequence)

    def _schedule(self, sequence: Sequence, step: StepPlan) -> None:
        """Reserve the sequence's next chunk, as long as the step has room for; may preempt."""
        if sequence in step.preempted:
            return
        if num_tokens := self._reserve(sequence, step.most_tokens(sequence), step):
            step.take(next_chunk(sequence, num_tokens))

    def _reserve(self, sequence: Sequence, wanted: int, step: StepPlan) -> int:
        """Reserve blocks for `wanted` tokens, or for as many as fit; returns how many.

        Preempts where there is none for even one, at worst the sequence itself.
        """
        num_tokens = wanted
        while num_tokens and not self.blocks.reserve(sequence, num_tokens):
            num_tokens = min(wanted, self.blocks.num_reservable_tokens(sequence))
            if num_tokens == 0:
                steady = self.steady.sequences
                self.steady.leave(steady, self.num_in_flight)
                step.chunks.update((each, next_chunk(each, 1)) for each in steady)
                step.drop(self.running.last)
                self._requeue(self.running.last)
                if sequence in step.preempted:
                    return 0
                num_tokens = wanted
        return num_tokens

    def _requeue(self, sequence: Sequence) -> None:
        """Preempt a running sequence: free its place and blocks, and queue it again."""
        self.running.remove(sequence)
        self.blocks.free(sequence)
        sequence.is_resumed = True
        self.waiting.restore(sequence)
        self.counters.num_preemptions += 1

    def _admit(
        self, step: StepPlan, later: list[Sequence], reading: list[Sequence]
    ) -> list[Sequence]:
        """Start waiting sequences while the step has room. Returns those that an option defers:
        they continue in the next step. `later` continue after the others; `reading` are the
        prompts that are being read, for whose rest blocks are left."""
        arriving: list[Sequence] = []
        has_room = partial(self._has_room, step)
        for sequence in self.waiting.ready(has_room, step.turn):
            prefix = self.blocks.find_prefix(sequence)
            if self.running and not self.blocks.has_room_for_all(sequence, prefix, reading):
                break
            num_cached = self.blocks.attach_prefix(sequence, prefix)
            self.waiting.take(sequence)
            self._count_admission(sequence, num_cached)
            self.blocks.announce(sequence)
            sequence.prompt_logprobs.clear()  # of the run before a preemption
            self.running.add(sequence)
            reading.append(sequence)
            if any(defers(sequence) for defers in self._defers):
                arriving.append(sequence)
            else:
                self._schedule_or_defer(sequence, step, later)
            if len(later) > _MOST_UNFINISHED or any(is_full() for is_full in self._is_full):
                break
        return arriving

    def _has_room(self, step: StepPlan, sequence: Sequence) -> bool:
        if step.turn is StepTurn.BULK and not sequence.is_bulk:
            return False
        num = len(self.running) + self.waiting.num_awaiting(beside=sequence)
        if num >= self.limits.max_num_seqs or step.preempted:
            return False
        return step.most_tokens(sequence) > 0

    def _count_admission(self, sequence: Sequence, num_cached: int) -> None:
        if sequence.is_resumed:
            return  # its prompt was counted the first time
        sequence.rank = (sequence.request.priority, next(self._admissions))
        sequence.num_cached_tokens = num_cached
        sequence.queued_s = self._clock() - sequence.arrived_s
        num_queried = len(sequence.token_ids) if self.blocks.is_prefix_caching else 0
        self.counters.count_prompt(sequence.num_prompt_tokens, num_queried, num_cached)
