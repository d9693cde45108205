"""Who computes what in the next step.

Who waits is admitted by priority and by its tenant's turn (engines/fair_queue.py). The rank of
an admitted sequence is (priority, number of its first admission); lower goes first everywhere.
A step first takes the running sequences that need one token, then goes on with prefills, then
admits waiting sequences. When blocks run out, the running sequence of the highest rank gives up
its own and waits again, before all new ones of its priority; the lowest rank can therefore
always go on.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from engines.base import EngineRequest, TokenEvent
from engines.errors import PromptTooLong, QueueFull
from engines.fair_queue import GENERATED_COST, FairQueue
from engines.native.block_manager import BlockManager
from engines.native.grammar import Guide
from engines.native.sampler import SampledToken
from engines.native.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute positions [num_computed_tokens, num_computed_tokens + num_tokens) of a sequence."""

    sequence: Sequence
    num_tokens: int

    @property
    def is_last(self) -> bool:
        """Whether the chunk reaches the last known token, so that the next one is sampled."""
        sequence = self.sequence
        return sequence.num_computed_tokens + self.num_tokens == len(sequence.token_ids)


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one engine."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_waiting: int


@dataclass(slots=True)
class Counters:
    """What EngineStats counts and only the scheduler sees."""

    num_preemptions: int = 0
    num_steps: int = 0  # counted by the core, failed ones too
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0


@dataclass(slots=True)
class _Step:
    """A step in the making."""

    budget: int  # tokens the step may still take
    num_tokens: dict[Sequence, int] = field(default_factory=dict)
    preempted: set[Sequence] = field(default_factory=set)

    def take(self, sequence: Sequence, num_tokens: int) -> None:
        self.num_tokens[sequence] = num_tokens
        self.budget -= num_tokens

    def drop(self, sequence: Sequence) -> None:
        self.budget += self.num_tokens.pop(sequence, 0)
        self.preempted.add(sequence)


class Scheduler:
    """Holds every unfinished sequence, waiting or running, and shares out the blocks."""

    def __init__(self, blocks: BlockManager, limits: Limits) -> None:
        self.blocks = blocks
        self.limits = limits
        self.counters = Counters()
        self.waiting: FairQueue[Sequence] = FairQueue()
        self.running: list[Sequence] = []  # by rank
        self._admissions = count()

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: EngineRequest, guide: Guide | None = None) -> Sequence:
        """Queue a request that `check_request` let pass; raises PromptTooLong or QueueFull."""
        sequence = Sequence(request, self.limits.max_model_len, guide)
        self._check_fits(sequence)
        if not self.waiting.has_room(request.tenant, self.limits.max_num_waiting):
            raise QueueFull(
                f"{len(self.waiting)} requests wait already and max_num_waiting is "
                f"{self.limits.max_num_waiting}; try again later"
            )
        self.waiting.add(sequence, request.priority, request.tenant)
        return sequence

    def schedule(self) -> list[Chunk]:
        """Choose the next step's chunks and reserve their blocks; never none while work is left."""
        step = _Step(self.limits.max_num_batched_tokens)
        for sequence in self._by_turn():
            if step.budget > 0 and sequence not in step.preempted:
                self._go_on(sequence, step)
        self._admit(step)
        return [Chunk(sequence, num_tokens) for sequence, num_tokens in step.num_tokens.items()]

    def update(
        self, chunks: Iterable[Chunk], sampled: Iterable[SampledToken]
    ) -> list[tuple[Sequence, TokenEvent]]:
        """Take in an executed step; `sampled` has one token for each chunk that is_last."""
        tokens = iter(sampled)
        events = []
        for chunk in chunks:
            is_last = chunk.is_last
            self.blocks.commit(chunk.sequence, chunk.num_tokens)
            if is_last:
                events.append((chunk.sequence, self._append(chunk.sequence, next(tokens))))
        return events

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence and free its blocks; nothing happens if it has ended already."""
        if sequence in self.running:
            self.running.remove(sequence)
        self.waiting.discard(sequence)
        self.blocks.free(sequence)

    def _by_turn(self) -> list[Sequence]:
        """Decodes before prefills, so that a long prompt never stalls running answers."""
        decoding = [s for s in self.running if s.num_uncomputed_tokens == 1]
        if len(decoding) == len(self.running):
            return decoding
        return decoding + [s for s in self.running if s.num_uncomputed_tokens > 1]

    def _go_on(self, sequence: Sequence, step: _Step) -> None:
        """Reserve the sequence's next chunk; preempts, at worst the sequence itself."""
        wanted = num_tokens = min(sequence.num_uncomputed_tokens, step.budget)
        while not self.blocks.reserve(sequence, num_tokens):
            num_tokens = min(wanted, self.blocks.num_reservable_tokens(sequence))
            if num_tokens == 0:
                self._preempt(self.running[-1], step)
                if sequence in step.preempted:
                    return
                num_tokens = wanted
        step.take(sequence, num_tokens)

    def _preempt(self, sequence: Sequence, step: _Step) -> None:
        step.drop(sequence)
        self.running.remove(sequence)
        self.blocks.free(sequence)
        sequence.is_resumed = True
        self.waiting.restore(sequence, *sequence.rank)
        self.counters.num_preemptions += 1

    def _admit(self, step: _Step) -> None:
        while self.waiting and len(self.running) < self.limits.max_num_seqs:
            if step.budget == 0 or step.preempted:
                return
            sequence = self.waiting.head()
            num_cached = self.blocks.attach_prefix(sequence)
            if self.running and not self.blocks.has_room_for_all(sequence):
                self.blocks.free(sequence)
                return
            self.waiting.take()
            self._count_admission(sequence, num_cached)
            insort(self.running, sequence, key=_rank)
            self._go_on(sequence, step)

    def _count_admission(self, sequence: Sequence, num_cached: int) -> None:
        if sequence.is_resumed:
            return  # its prompt was counted the first time
        sequence.rank = (sequence.request.priority, next(self._admissions))
        self.waiting.charge(sequence.request.tenant, sequence.num_prompt_tokens - num_cached)
        sequence.num_cached_tokens = num_cached
        sequence.queued_s = time.monotonic() - sequence.arrived_s
        self.counters.prompt_tokens += sequence.num_prompt_tokens
        if self.blocks.is_prefix_caching:
            self.counters.prefix_cache_queries += sequence.num_prompt_tokens
            self.counters.prefix_cache_hits += num_cached

    def _append(self, sequence: Sequence, token: SampledToken) -> TokenEvent:
        finish_reason = sequence.append(token.token_id)
        if finish_reason is not None:
            self.running.remove(sequence)
            self.blocks.free(sequence)
        self.counters.generated_tokens += 1
        self.waiting.charge(sequence.request.tenant, GENERATED_COST)
        logprobs = None if token.logprob is None else (token.logprob,)
        return TokenEvent(
            (token.token_id,),
            logprobs,
            finish_reason,
            sequence.num_cached_tokens,
            sequence.queued_s,
        )

    def _check_fits(self, sequence: Sequence) -> None:
        num_tokens = sequence.max_len - 1  # the last token's K/V are never needed
        num_blocks = self.blocks.num_blocks_to_hold(num_tokens)
        if num_blocks > self.blocks.num_usable_blocks:
            raise PromptTooLong(
                f"the prompt has {sequence.num_prompt_tokens} tokens and max_tokens is "
                f"{sequence.sampling.max_tokens}: that needs {num_blocks} KV blocks of "
                f"{self.blocks.block_size} tokens, and the engine has "
                f"{self.blocks.num_usable_blocks}; shorten one of them or raise num_kv_blocks"
            )


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank
