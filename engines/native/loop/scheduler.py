"""Which sequences compute what in the next step. Waiting sequences are admitted by priority and in
order of arrival; tenants are told apart before the engine
(engines/queueing/admission.py). The rank of an admitted sequence is (priority, number of its first
admission); lower goes first everywhere.
A step first takes the running sequences that need one token. What prefill runs beside them is
decided by time (step_plan.py): as much as keeps the step within the longest gap between two tokens.
Every other step keeps half of that for the oldest prompt that is being read, and has the other half
for those that end in this step and for those that wait; the steps between continue much shorter
prompts first. So a short prompt does not wait behind a long one, and a long one continues.
When blocks run out, the running sequence of the highest rank gives up its own and waits again,
before all new ones of its priority; the lowest rank can therefore always continue.

A step is scheduled on what is known by then: the step before it may still be computed. So a
chunk is frozen when it is made, and only accept() and cancel() tell what became of it.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Sequence_
from itertools import count
from typing import Final

from engines.base import EngineRequest, FinishReason, TokenEvent
from engines.native.backends.base import Move, Sampled
from engines.native.grammar.compiler import Guide
from engines.native.loop.block_manager import BlockManager
from engines.native.loop.limits import SchedulerCounters, SchedulerLimits
from engines.native.loop.option import Option, calls
from engines.native.loop.sequence import Sequence, much_shorter, rank, shortest
from engines.native.loop.step_costs import StepCosts, StepWork, assumed_costs
from engines.native.loop.step_plan import Chunk, StepPlan, allowed_gap_s, next_chunk
from engines.queueing.fair_queue import FairQueue

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
        self.waiting: FairQueue[Sequence] = FairQueue()
        self.running: list[Sequence] = []  # by rank
        self._held: dict[Sequence, bytes] = {}  # taken from the queue, in order: _next() says why
        self._free_slots = [*range(limits.max_num_seqs)][::-1]
        self._admissions = count()
        self._num_planned = 0  # steps
        self.planned = StepWork()  # of the last step
        self.use(())

    def use(self, options: Sequence_[Option]) -> None:
        """Call these options from now on, in this order; only while there is no work."""
        self.blocks.use(options)
        self._left_of, self._is_full = calls(options, "gap_s"), calls(options, "is_full")
        self._planned, self._defers = calls(options, "planned"), calls(options, "defers")
        self._needs_moves = calls(options, "needs_moves")
        self._wait_for_drafts, self._drafts = calls(options, "waits"), calls(options, "drafts")

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting or self._held)

    @property
    def num_waiting(self) -> int:
        """Sequences that have not started, or were preempted."""
        return len(self.waiting) + len(self._held)

    def add(
        self, request: EngineRequest, guide: Guide | None = None, hashes: Iterable[bytes] = ()
    ) -> Sequence:
        """Queue a request that `check_request` let pass; raises PromptTooLong.

        `hashes`: of its first blocks, as far as they are known.
        """
        sequence = Sequence(request, self.limits.max_model_len, guide, self._clock())
        sequence.block_hashes = [*hashes]
        self.blocks.check_fits(sequence)
        self.waiting.add(sequence, request.priority, tenant="")
        return sequence

    def schedule(self) -> list[Chunk]:
        """Choose the next step's chunks and reserve their blocks.

        Empty only if there is no work, or all of it waits for a step that is not collected.
        """
        decoding, prefilling = self._by_turn()
        if self._waits(decoding):
            return []
        self._num_planned += 1
        prompts = [*prefilling, *self._held, *([self.waiting.head()] if self.waiting else [])]
        gap_s = allowed_gap_s(self.limits.max_token_gap_s, prompts, self._clock())
        for left_of in self._left_of:
            gap_s = None if gap_s is None else left_of(gap_s)
        step = StepPlan(
            self.limits.max_num_batched_tokens, gap_s, self.costs,
            is_oldest_turn=self._num_planned % 2 == 0,
        )  # fmt: skip
        drafts = self._drafts_of(decoding)
        for sequence in decoding:
            if step.num_left > 0 and sequence not in step.preempted:
                self._decode(sequence, step, drafts.get(sequence, ()))
        step.end_decoding(len(prefilling) + len(self.waiting))
        self._prefill(prefilling, step)
        self.planned = step.work
        for planned in self._planned:
            planned(self.costs.seconds(step.work))
        chunks = [*step.chunks.values()]
        for chunk in chunks:
            sequence = chunk.sequence
            sequence.num_scheduled_tokens = chunk.end
            sequence.num_pending_tokens += chunk.is_last
            sequence.is_verifying = bool(chunk.drafts)
        return chunks

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
        return self._event(sequence, token_ids, sampled, finish_reason)

    def take_moves(self, chunks: list[Chunk]) -> tuple[tuple[Move, ...], bool]:
        """The copies that the step of these chunks is to carry out, and whether it needs them."""
        sequences = [chunk.sequence for chunk in chunks] if self._needs_moves else []
        is_needed = any(needs(sequences) for needs in self._needs_moves)
        return self.blocks.take_moves(), is_needed

    def cancel(self, chunks: list[Chunk], moves: tuple[Move, ...] = ()) -> None:
        """Take chunks and copies of a failed step as never made; those of later steps come first.

        A sequence that holds a block that was to be copied from the host begins again.
        """
        for chunk in chunks:
            sequence = chunk.sequence
            sequence.num_pending_tokens -= chunk.is_last
            sequence.num_scheduled_tokens = min(sequence.num_scheduled_tokens, chunk.start)
            sequence.is_verifying = sequence.is_started = False
        lost = self.blocks.lose(moves)
        for sequence in [s for s in self.running if self.blocks.has_one_of(s, lost)]:
            self._put_back(sequence)
        self.blocks.forget(lost)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence and free its blocks; nothing happens if it has ended already."""
        sequence.is_ended = True
        if sequence in self.running:
            self._leave(sequence)
        self.waiting.discard(sequence)
        self._held.pop(sequence, None)
        self.blocks.free(sequence)

    def _commit(self, sequence: Sequence, end: int) -> None:
        """Keep the K/V before `end`; K/V of wrong drafts are overwritten later."""
        if sequence.slot is None:
            return  # preempted after the step was launched: its blocks are others' by now
        self.blocks.commit(sequence, end - sequence.num_computed_tokens)

    def _by_turn(self) -> tuple[list[Sequence], list[Sequence]]:
        """Decodes before prefills, so that a long prompt never stalls running answers."""
        decoding, prefilling = [], []
        for sequence in self.running:
            num_tokens = sequence.num_schedulable_tokens
            if num_tokens == 1:
                decoding.append(sequence)
            elif num_tokens > 1:
                prefilling.append(sequence)
        return decoding, prefilling

    def _waits(self, decoding: list[Sequence]) -> bool:
        """Whether to collect the step in flight first, so that all sequences continue together.

        Otherwise those with drafts and those without would take turns, each step half full.
        """
        if any(sequence.is_verifying for sequence in self.running):
            return True
        if not self._wait_for_drafts or not _has_pending(decoding):
            return False
        return any(waits(decoding) for waits in self._wait_for_drafts)

    def _drafts_of(self, decoding: list[Sequence]) -> dict[Sequence, tuple[int, ...]]:
        """Drafts for the sequences that decode; none while a token before them is not known."""
        if not self._drafts or _has_pending(decoding):
            return {}
        return {key: value for each in self._drafts for key, value in each(decoding).items()}

    def _decode(self, sequence: Sequence, step: StepPlan, drafts: tuple[int, ...]) -> None:
        """Reserve room for the sequence's next token and its drafts; preempts, at worst itself."""
        drafts = drafts[: self._max_drafts(sequence, step)]
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
        if step.is_oldest_turn and prefilling and (prefilling[1:] or self.waiting or self._held):
            step.keep_part(prefilling[0])
        later = prefilling[:1]
        for sequence in sorted(prefilling[1:], key=shortest):
            self._go_on_or_later(sequence, step, later)
        arriving = self._admit(step, later, [*prefilling])
        if not step.is_oldest_turn:
            for sequence in much_shorter(later):
                self._go_on(sequence, step)
                later.remove(sequence)
        step.keep_nothing()
        for sequence in sorted(later, key=rank):
            self._go_on(sequence, step)
        if not step.chunks:  # nothing is computed meanwhile
            for sequence in arriving:
                self._go_on(sequence, step)

    def _go_on_or_later(self, sequence: Sequence, step: StepPlan, later: list[Sequence]) -> None:
        if not later and (self.waiting or self._held) and not step.ends(sequence):
            step.keep_part(sequence)
        if step.is_tight or step.ends(sequence):
            self._go_on(sequence, step)
        else:
            later.append(sequence)

    def _go_on(self, sequence: Sequence, step: StepPlan) -> None:
        """Reserve the sequence's next chunk, as long as the step has room for; may preempt."""
        if sequence in step.preempted:
            return
        num_tokens = step.most_tokens(sequence)
        num_tokens = self._reserve(sequence, num_tokens, step)
        if num_tokens:
            step.take(next_chunk(sequence, num_tokens))

    def _reserve(self, sequence: Sequence, wanted: int, step: StepPlan) -> int:
        """Reserve blocks for `num` tokens, or for as many as fit; preempts where
        there is none for even one, at worst the sequence itself. The number of tokens."""
        num_tokens = wanted
        while num_tokens and not self.blocks.reserve(sequence, num_tokens):
            num_tokens = min(wanted, self.blocks.num_reservable_tokens(sequence))
            if num_tokens == 0:
                self._preempt(self.running[-1], step)
                if sequence in step.preempted:
                    return 0
                num_tokens = wanted
        return num_tokens

    def _max_drafts(self, sequence: Sequence, step: StepPlan) -> int:
        """How many drafts the backend and the step accept, and the answer has room for."""
        num_left = sequence.max_len - len(sequence.token_ids) - 1
        return max(min(self.limits.max_drafts, step.num_left - 1, num_left), 0)

    def _preempt(self, sequence: Sequence, step: StepPlan) -> None:
        step.drop(sequence)
        self._put_back(sequence)

    def _put_back(self, sequence: Sequence) -> None:
        """Preempt a running sequence: free its place and blocks, and queue it again."""
        self._leave(sequence)
        self.blocks.free(sequence)
        sequence.is_resumed = True
        self.waiting.restore(sequence, *sequence.rank)
        self.counters.num_preemptions += 1

    def _leave(self, sequence: Sequence) -> None:
        """Give up the place among the running ones; the slot is the next one's at once."""
        self.running.remove(sequence)
        assert sequence.slot is not None
        self._free_slots.append(sequence.slot)
        sequence.slot = None

    def _admit(
        self, step: StepPlan, later: list[Sequence], reading: list[Sequence]
    ) -> list[Sequence]:
        """Start waiting sequences while the step has room. Returns those that an option defers:
        they continue in the next step. `later` continue after the others; `reading` are the
        prompts that are being read, for whose rest blocks are left."""
        arriving: list[Sequence] = []
        for sequence in self._next(step):
            prefix = self.blocks.find_prefix(sequence)
            if self.running and not self.blocks.has_room_for_all(sequence, prefix, reading):
                break
            num_cached = self.blocks.attach_prefix(sequence, prefix)
            self._take(sequence)
            self._count_admission(sequence, num_cached)
            self.blocks.announce(sequence)
            sequence.prompt_logprobs.clear()  # of the run before a preemption
            sequence.slot, sequence.is_started = self._free_slots.pop(), False
            insort(self.running, sequence, key=rank)
            reading.append(sequence)
            if any(defers(sequence) for defers in self._defers):
                arriving.append(sequence)
            else:
                self._go_on_or_later(sequence, step, later)
            if len(later) > _MOST_UNFINISHED or any(is_full() for is_full in self._is_full):
                break
        return arriving

    def _next(self, step: StepPlan) -> Iterator[Sequence]:
        """The sequences that may begin, as long as the step has room: first those that were held.

        Held are those whose next block a running sequence computes: they will find it.
        """
        for sequence in [*self._held]:
            if not self._has_place(step, sequence):
                return
            if self.blocks.is_coming(self._held[sequence]):
                continue
            if (awaited := self.blocks.awaited(sequence)) is not None:
                self._held[sequence] = awaited
                continue
            yield sequence
        while self.waiting and self._has_place(step, sequence := self.waiting.head()):
            if (awaited := self.blocks.awaited(sequence)) is not None:
                self._held[self.waiting.take()] = awaited
            else:
                yield sequence

    def _has_place(self, step: StepPlan, sequence: Sequence) -> bool:
        num = len(self.running) + len(self._held) - (sequence in self._held)
        if num >= self.limits.max_num_seqs or step.preempted:
            return False
        return step.most_tokens(sequence) > 0

    def _take(self, sequence: Sequence) -> None:
        if sequence in self._held:
            del self._held[sequence]
        else:
            self.waiting.take()

    def _count_admission(self, sequence: Sequence, num_cached: int) -> None:
        if sequence.is_resumed:
            return  # its prompt was counted the first time
        sequence.rank = (sequence.request.priority, next(self._admissions))
        sequence.num_cached_tokens = num_cached
        sequence.queued_s = self._clock() - sequence.arrived_s
        self.counters.prompt_tokens += sequence.num_prompt_tokens
        if self.blocks.is_prefix_caching:
            self.counters.prefix_cache_queries += len(sequence.token_ids)
            self.counters.prefix_cache_hits += num_cached

    def _event(
        self,
        sequence: Sequence,
        token_ids: tuple[int, ...],
        sampled: Sampled,
        finish_reason: FinishReason | None,
    ) -> TokenEvent:
        self.counters.generated_tokens += len(token_ids)
        logprobs = sampled.logprobs and sampled.logprobs[: len(token_ids)]
        rest = sequence.num_cached_tokens, sequence.queued_s, sequence.take_extras()
        return TokenEvent(token_ids, logprobs, finish_reason, *rest)


def _has_pending(sequences: list[Sequence]) -> bool:
    return any(sequence.num_pending_tokens for sequence in sequences)
