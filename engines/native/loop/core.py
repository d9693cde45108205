"""The synchronous heart of the engine: one step after another, in one thread.

Two loops do the same. The simple one computes a step, takes it in and proceeds to the next. The
overlapped one launches a step before it takes in the one before, so that the device never
waits for the bookkeeping; what that step brings for a sequence that has ended meanwhile is
thrown away. Every request gets the same tokens from both.
"""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from engines.base import EngineStats, TokenEvent
from engines.errors import EngineDead, EngineError, RequestFailed
from engines.native.backends.base import Backend, Move, Sampled, Step, StepErrors, TokenMasks
from engines.native.grammar.masks import MaskMaker, gathered, wait_for, wait_for_one
from engines.native.loop.failures import FailureCount, StepFailure
from engines.native.loop.option import Option, calls
from engines.native.loop.scheduler import Scheduler
from engines.native.loop.sequence import Sequence
from engines.native.loop.steady import PlainTokens, SteadyStep
from engines.native.loop.step_plan import Chunk, build_batch
from engines.native.step_costs import StepWork

NO_ERRORS: Final = StepErrors()
SequenceOutcome = tuple[Sequence, TokenEvent | EngineError]


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that the backend computes, and what was asked of it."""

    chunks: list[Chunk]
    step: Step
    masks: dict[Sequence, TokenMasks]  # of those with drafts, made before them
    launched_s: float  # when its launch began
    work: StepWork
    moves: tuple[Move, ...] = ()
    steady: SteadyStep | None = None
    put_off: set[int] = field(default_factory=set)  # rows whose tokens are not taken

    def all_chunks(self) -> list[Chunk]:
        return self.chunks if self.steady is None else self.chunks + self.steady.chunks()


class EngineCore:
    """The step loop of one backend and one scheduler; all calls come from the worker's thread."""

    def __init__(
        self,
        backend: Backend,
        scheduler: Scheduler,
        vocab_size: int,
        *,
        is_overlapped: bool = False,
        clock: Callable[[], float] = time.monotonic,
        errors: StepErrors = NO_ERRORS,
    ) -> None:
        """`clock`: in seconds; the backend of a simulation has one of its own."""
        self.backend = backend
        self.scheduler = scheduler
        self.vocab_size = vocab_size
        self._masks = MaskMaker(vocab_size)
        self.puts_off = is_overlapped  # rows whose masks are late
        self._is_overlapped = is_overlapped
        self._clock = clock
        self._collected_s = 0.0  # when the last step was
        self._was_copying = False  # blocks, in that step
        self._in_flight: Launched | None = None  # only in the overlapped loop
        self._errors = errors
        self._failures = FailureCount(errors)
        scheduler.takes_steady = backend.capacity.takes_steady
        self._outcomes: list[SequenceOutcome] = []  # of the present step()
        self._plain: PlainTokens = [], []  # the same
        self.watchers: list[Callable[[EngineCore], None]] = []  # called after each step
        self.options: tuple[Option, ...] = ()
        self._after_step = self._computed = self._counts = self._levels = calls((), "after_step")

    def use(self, options: Iterable[Option]) -> None:
        """Add options behind those that there are; only while nothing runs or is cached."""
        new = tuple(options)
        for option in new:
            option.attach(self.scheduler, self.backend.capacity)
        self.options += new
        self.scheduler.use(self.options)
        self._after_step = calls(self.options, "after_step")
        self._computed = calls(self.options, "computed")
        self._counts, self._levels = calls(self.options, "counts"), calls(self.options, "levels")

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or self._in_flight is not None

    @property
    def end(self) -> EngineDead | None:
        """Why no more steps can be computed, if so."""
        return self._failures.end

    def step(self) -> list[SequenceOutcome]:
        """As `advance`, with an event for each plain token."""
        (sequences, tokens), outcomes = self.advance()
        pairs = zip(sequences, tokens, strict=True)
        return [*((each, each.event((token,), None, None)) for each, token in pairs), *outcomes]

    def advance(self) -> tuple[PlainTokens, list[SequenceOutcome]]:
        """Run one step; the plain tokens, then the new events and errors, each with its sequence.

        A sequence has ended when its event has a finish_reason, or with its error. Its first token
        is in an event.
        """
        self._outcomes, self._plain = [], ([], [])
        self._run_step()
        self._after_step()
        for watcher in self.watchers:
            watcher(self)
        return self._plain, self._outcomes

    def note_copies(self) -> None:
        """Note that blocks were copied between two steps: the time of the next is not learned."""
        self._was_copying = True

    def abandon(self) -> None:
        """Wait for the step that the device still computes, and discard it."""
        if self._in_flight is not None:
            _throw_away(self._in_flight)
            self._in_flight = None

    def _run_step(self) -> None:
        previous, self._in_flight = self._in_flight, None
        launched = self._launch()
        if previous is not None and not self._collect(previous, launched):
            return
        if launched is not None and self._mask(launched):
            if self._is_overlapped:
                self._in_flight = launched
            else:
                self._collect(launched)

    def _launch(self) -> Launched | None:
        """Schedule and launch the next step; None if there is none to be launched now."""
        chunks, steady = self.scheduler.schedule()
        if not chunks and steady is None and self._await_held():
            chunks, steady = self.scheduler.schedule()
        if not chunks and steady is None:
            return None
        masked = (chunk.sequence for chunk in chunks if chunk.sequence.is_masked)
        self._masks.begin([each for each in masked if each.mask is None])
        chunks, masks = self._guided(chunks)
        needs_moves = self.scheduler.blocks.needs_moves(chunk.sequence for chunk in chunks)
        moves = self.scheduler.blocks.take_moves()
        work, rows = self.scheduler.planned, None if steady is None else steady.rows
        batch = build_batch(chunks, moves, needs_moves=needs_moves, steady=rows)
        launched_s = self._clock()
        try:
            step = self.backend.launch(batch)
            return Launched(chunks, step, masks, launched_s, work, moves, steady)
        except Exception as error:
            chunks += [] if steady is None else steady.chunks()
            failure = self._failures.on_error(error, chunks)
        self._fail(failure, chunks, moves)
        return None

    def _guided(self, chunks: list[Chunk]) -> tuple[list[Chunk], dict[Sequence, TokenMasks]]:
        """Cut drafts where the grammar forbids them; returns the masks of the rest."""
        masks: dict[Sequence, TokenMasks] = {}
        guided = []
        for chunk in chunks:
            sequence, drafts = chunk.sequence, chunk.drafts
            if drafts and sequence.guide is not None:
                wait_for([sequence.mask])  # until then a thread has the guide
                of = self._masks.empty(1 + len(drafts))
                num = sequence.guide.fill_along(of, drafts)
                chunk = replace(chunk, drafts=drafts[:num])
                if num:
                    masks[sequence] = of[: num + 1]
            guided.append(chunk)
        return guided, masks

    def _mask(self, launched: Launched) -> bool:
        """Give the step its masks now that the tokens before them are known; False if it failed."""
        if not any(chunk.is_masked for chunk in launched.chunks):
            return True
        masks = self._made_masks(launched)
        try:
            launched.step.mask(masks)
            return True
        except Exception as error:
            failure = self._failures.on_error(error, launched.all_chunks())
        _throw_away(launched)
        self._fail(failure, launched.all_chunks(), launched.moves)
        return False

    def _made_masks(self, launched: Launched) -> dict[int, TokenMasks]:
        """The masks of those that have not ended, by row; ends those without a way on.

        A row whose mask is not made when the device needs it is put off: its sequence samples in a
        later step, with the same draw. The simple loop waits for all (`puts_off`).
        """
        chunks, of_drafts = launched.chunks, launched.masks
        masked = {row: chunk.sequence for row, chunk in enumerate(chunks) if chunk.is_masked}
        open_ = {row: each for row, each in masked.items() if not each.is_ended}
        wanted = {
            row: each.mask for row, each in open_.items() if each.mask and each not in of_drafts
        }
        begun_s = max(launched.launched_s, self._collected_s)
        left_s = begun_s + self.scheduler.costs.seconds(launched.work) - self._clock()
        if len(wanted) == len(chunks) and launched.steady is None:
            wait_for_one(wanted.values())  # nothing else would be sampled
        masks, late, errors = gathered(wanted, max(left_s, 0.0) if self.puts_off else None)
        for row in late:
            chunks[row] = chunks[row].put_off()
        launched.put_off.update(late)
        for row, error in errors.items():
            self._end_with(chunks[row].sequence, error)
        return masks | {row: of_drafts[each] for row, each in open_.items() if each in of_drafts}

    def _await_held(self) -> bool:
        """Wait for a mask if nothing can be computed before; False if that is not so."""
        held = [each.mask for each in self.scheduler.running if each.is_held]
        if not held or self.scheduler.num_in_flight:
            return False
        wait_for_one(held)
        return True

    def _collect(self, launched: Launched, ahead: Launched | None = None) -> bool:
        """Wait for a step and take it in; False if it failed, and with it the one ahead of it."""
        try:
            sampled = launched.step.collect()
            tokens = [] if launched.steady is None else launched.step.steady_tokens()
        except Exception as error:
            failure = self._failures.on_error(error, launched.all_chunks())
        else:
            seconds = self._learn(launched)
            steady = () if launched.steady is None else launched.steady.sequences
            self._computed(seconds, launched.chunks, steady)
            self._take_in(launched, sampled, tokens)
            return True
        if ahead is not None:
            _throw_away(ahead)
            self.scheduler.cancel(ahead.all_chunks(), ahead.moves)
        self._fail(failure, launched.all_chunks(), launched.moves)
        return False

    def _learn(self, launched: Launched) -> float:
        """Correct the costs of steps by one that was collected; the seconds that it took.

        It began when it was launched, or when the one before it was done. Steps that waited for a
        mask say nothing: the host made it meanwhile. Nor do those that copied blocks or may have
        waited for copies.
        """
        now_s = self._clock()
        seconds = now_s - max(launched.launched_s, self._collected_s)
        self._collected_s = now_s
        was_copying, self._was_copying = self._was_copying, bool(launched.moves)
        is_masked = any(chunk.is_masked for chunk in launched.chunks)
        if not (was_copying or launched.moves or is_masked):
            self.scheduler.costs.note(launched.work, seconds)
        return seconds

    def _take_in(self, launched: Launched, sampled: list[Sampled], tokens: list[int]) -> None:
        scheduler, chunks = self.scheduler, launched.chunks
        scheduler.counters.num_steps += 1
        num_tokens = sum(chunk.num_tokens for chunk in chunks) + len(tokens)
        scheduler.counters.count_step(num_tokens)
        scheduler.steady.leave((chunk.sequence for chunk in chunks), scheduler.num_in_flight)
        results, put_off = iter(sampled), launched.put_off
        found = [
            (chunk, next(results) if chunk.has_result or row in put_off else None)
            for row, chunk in enumerate(chunks)
        ]
        if launched.steady is not None:
            self._plain, rest = scheduler.steady.take_in(
                launched.steady, tokens, scheduler.num_in_flight
            )
            scheduler.counters.generated_tokens += len(self._plain[0])
            found += [(chunk, Sampled((token,) if token >= 0 else ())) for chunk, token in rest]
        num_last = sum(chunk.is_last for chunk in chunks) + len(tokens)
        broken = []
        for chunk, result in found:
            if chunk.is_last and result is not None and not result.token_ids:
                broken.append(chunk.sequence)
            elif (event := scheduler.accept(chunk, result)) is not None:
                self._emit(chunk.sequence, event)
        scheduler.num_in_flight -= 1
        masked = (chunk.sequence for chunk, result in found if result and chunk.sequence.is_masked)
        self._masks.begin([each for each in masked if each.mask is None and not each.is_ended])
        if broken:
            # One adapter alone may be at fault, and the engine is not.
            adapters = {each.request.adapter for each in broken}
            are_all = len(broken) == num_last and (None in adapters or len(adapters) > 1)
            self._end_all(self._failures.on_non_finite_logits(broken, are_all=are_all))
        else:
            self._failures.on_success()

    def _emit(self, sequence: Sequence, event: TokenEvent) -> None:
        if sequence.guide is not None:
            try:
                for token_id in event.token_ids:
                    sequence.guide.accept(token_id)
            except RuntimeError as error:
                self._end_with(sequence, RequestFailed(str(error)))
                return
        sequence.mask = None
        self._outcomes.append((sequence, event))

    def _fail(self, failure: StepFailure, chunks: list[Chunk], moves: tuple[Move, ...]) -> None:
        """End the requests of a failed step, and let the others take it again."""
        self.scheduler.counters.num_steps += 1
        if failure.is_out_of_memory:
            self._errors.give_back()
        self.scheduler.cancel(chunks, moves)
        self._end_all(failure)

    def _end_all(self, failure: StepFailure) -> None:
        for sequence in failure.sequences:
            if not sequence.is_ended:
                self._end_with(sequence, type(failure.error)(*failure.error.args))

    def _end_with(self, sequence: Sequence, error: EngineError) -> None:
        self.scheduler.remove(sequence)
        self._outcomes.append((sequence, error))

    def stats(self) -> EngineStats:
        """Count what runs and ran; may be called from any thread."""
        scheduler = self.scheduler
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_kv_blocks=scheduler.blocks.num_usable_blocks,
            num_free_kv_blocks=scheduler.blocks.num_free_blocks,
            kv_block_size=scheduler.blocks.block_size,
            **scheduler.counters.of_steps(),
            extras=dict(ChainMap({}, *(counts() for counts in self._counts))),
            levels=dict(ChainMap({}, *(levels() for levels in self._levels))),
        )


def _throw_away(launched: Launched) -> None:
    with suppress(Exception):  # it follows one that has failed
        launched.step.collect()
