"""The engine's thread: it alone touches the core; others leave commands in its inbox.

It loads the core too: OpenMP keeps a pool of threads for each thread that ever ran something in
parallel, and with more of them than cores they would all sleep between two pieces of work.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, Generic, NamedTuple, TypeVar

from engines.base import EngineRequest, Outcome, Receive, TokenEvent
from engines.errors import EngineDead, EngineError
from engines.native.grammar.compiler import Guide
from engines.native.loop.core import EngineCore
from engines.native.loop.sequence import Sequence

_IDLE_S: Final = 0.5  # before the books are checked, which takes 20 ms with 75,000 blocks

log = logging.getLogger(__name__)


class FoundPrefix(NamedTuple):
    """The first tokens of a request that are cached, and the hashes of its blocks."""

    num_tokens: int = 0
    block_hashes: tuple[bytes, ...] = ()


@dataclass(slots=True, eq=False)
class Submission:
    """One submitted request, as the two threads name it to each other."""

    request: EngineRequest
    guide: Guide | None
    prefix: FoundPrefix | None = None  # when it was prepared, if that was looked up
    arrived_s: float = 0.0  # this and `receive`: set before it is submitted
    receive: Receive = field(init=False)


Delivery = tuple[Submission, Outcome]
Deliver = Callable[[list[Submission], list[int], list[Delivery]], None]
"""Gets what a step has brought: one plain token for each of some, then events and errors."""
T = TypeVar("T")


class _Command(Enum):
    SUBMIT = auto()
    ABORT = auto()


class _Call(Generic[T]):
    """Work for the engine's thread between two steps."""

    def __init__(self, work: Callable[[EngineCore], T]) -> None:
        self._work = work
        self.result: Future[T] = Future()

    def run(self, core: EngineCore) -> None:
        try:
            self.result.set_result(self._work(core))
        except Exception as error:
            self.result.set_exception(error)


_InInbox = tuple[_Command, Submission] | _Call[Any]


class StepWorker:
    """Runs the core for as long as there is work and sleeps when there is none.

    `deliver` is called in the worker's thread, once a step with all that the step brought.
    Every submission gets events up to one with a finish_reason, or one error, unless aborted.
    """

    def __init__(self, load: Callable[[], EngineCore], deliver: Deliver) -> None:
        self._load = load
        self._loaded: Future[EngineCore] = Future()
        self._deliver = deliver
        self._condition = threading.Condition()
        self._inbox: list[_InInbox] = []  # guarded by _condition
        self._end: EngineDead | None = None  # why nothing runs any more; guarded by _condition
        self._is_stopping = False
        self._submissions: dict[Sequence, Submission] = {}
        self._sequences: dict[Submission, Sequence] = {}
        self._thread = threading.Thread(target=self._run, name="native-engine", daemon=True)

    def start(self) -> EngineCore:
        """Load the core and wait for it; raises the error of `load`, after the thread has ended."""
        self._thread.start()
        return self._loaded.result()

    def submit(self, submission: Submission) -> None:
        """Queue a checked request; raises EngineDead if nothing runs any more."""
        with self._condition:
            if self._end is not None:
                raise EngineDead(*self._end.args)
            self._inbox.append((_Command.SUBMIT, submission))
            self._condition.notify()

    def abort(self, submission: Submission) -> None:
        """Free what the submission holds before the next step; it gets no more deliveries."""
        with self._condition:
            self._inbox.append((_Command.ABORT, submission))
            self._condition.notify()

    def call(self, work: Callable[[EngineCore], T]) -> Future[T]:
        """Have the engine's thread do this between two steps; raises EngineDead, as `submit`."""
        call = _Call(work)
        with self._condition:
            if self._end is not None:
                raise EngineDead(*self._end.args)
            self._inbox.append(call)
            self._condition.notify()
        return call.result

    def check_health(self) -> None:
        """Raise EngineDead with the reason if the engine has ended."""
        if self._end is not None:
            raise EngineDead(*self._end.args)

    def dismiss(self) -> None:
        """Have the thread end every open request with EngineDead, and itself; no waiting."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify()

    def stop(self) -> None:
        self.dismiss()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._core = self._load()
        except BaseException as error:
            self._loaded.set_exception(error)
            return
        self._loaded.set_result(self._core)
        try:
            end = self._work()
        except Exception as error:  # our own bookkeeping failed: nothing can be trusted now
            log.exception("The engine's scheduling failed")
            end = EngineDead(f"the engine's scheduling failed: {type(error).__name__}: {error}")
        self._close(end)
        self._core.backend.close()

    def _work(self) -> EngineDead:
        """Step until stopped or until a fatal error; return why it ended."""
        while self._core.end is None and self._next_commands():
            self._step()
        end = self._core.end or EngineDead("the engine has been stopped")
        self._core.abandon()
        for sequence in self._submissions:
            self._core.scheduler.remove(sequence)
        self._core.scheduler.blocks.check_integrity()
        return end

    def _next_commands(self) -> bool:
        """Carry out the inbox, waiting for it while there is no work; False to stop."""
        while True:
            if self._inbox or not self._core.has_work:
                for command in self._take_commands():
                    if isinstance(command, _Call):
                        command.run(self._core)
                    else:
                        self._carry_out(*command)
            if self._is_stopping or self._core.has_work:
                return not self._is_stopping

    def _take_commands(self) -> list[_InInbox]:
        if not self._core.has_work and not self._wait_for_commands(_IDLE_S):
            self._core.scheduler.blocks.check_integrity()
            self._wait_for_commands(None)
        with self._condition:
            commands, self._inbox = self._inbox, []
        return commands

    def _wait_for_commands(self, timeout_s: float | None) -> bool:
        """Whether there are commands, or the end, by then."""
        with self._condition:
            return self._condition.wait_for(
                lambda: bool(self._inbox) or self._is_stopping, timeout_s
            )

    def _carry_out(self, command: _Command, submission: Submission) -> None:
        if command is _Command.ABORT:
            self._abort(submission)
            return
        # The guide's memory is to go when the sequence ends.
        guide, submission.guide = submission.guide, None
        try:
            prefix = submission.prefix or FoundPrefix(0)
            sequence = self._core.scheduler.add(
                submission.request, guide, prefix.block_hashes, prefix.num_tokens
            )
            sequence.arrived_s = submission.arrived_s  # what it waited before counts too
        except EngineError as error:
            self._deliver([], [], [(submission, error)])
            return
        self._submissions[sequence], self._sequences[submission] = submission, sequence

    def _abort(self, submission: Submission) -> None:
        sequence = self._sequences.get(submission)
        if sequence is not None:  # else it ended while the abort was on its way
            self._core.scheduler.remove(sequence)
            self._forget(sequence)

    def _forget(self, sequence: Sequence) -> Submission:
        submission = self._submissions.pop(sequence)
        del self._sequences[submission]
        return submission

    def _step(self) -> None:
        deliveries: list[Delivery] = []
        (sequences, tokens), outcomes = self._core.advance()
        plain = [self._submissions[each] for each in sequences]  # some may end below
        for sequence, outcome in outcomes:
            is_open = isinstance(outcome, TokenEvent) and outcome.finish_reason is None
            submission = self._submissions[sequence] if is_open else self._forget(sequence)
            deliveries.append((submission, outcome))
        if tokens or deliveries:
            self._deliver(plain, tokens, deliveries)

    def _close(self, end: EngineDead) -> None:
        with self._condition:
            self._end = end
            commands, self._inbox = self._inbox, []
        submissions = [*self._sequences]
        for command in commands:
            if isinstance(command, _Call):
                command.result.set_exception(EngineDead(*end.args))
            elif command[0] is _Command.SUBMIT:
                submissions.append(command[1])
        self._submissions.clear()
        self._sequences.clear()
        ends: list[Delivery] = [(submission, EngineDead(*end.args)) for submission in submissions]
        self._deliver([], [], ends)
