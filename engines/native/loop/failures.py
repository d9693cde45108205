"""What a failed step means: which requests end with it, whether memory was short, when the engine
is lost."""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from typing import Final

from engines.errors import EngineDead, EngineError, OutOfMemory, RequestFailed
from engines.native.backends.base import StepErrors
from engines.native.loop.sequence import Sequence
from engines.native.loop.step_plan import Chunk

log = logging.getLogger(__name__)

MAX_FAILED_STEPS: Final = 3  # in a row; after that the fault is not in the requests
FATAL: Final = (AssertionError,)  # no other request would fare better
NUM_TOKENS_ALWAYS_POSSIBLE: Final = 32  # an engine without the memory for so few is broken


@dataclass(frozen=True, slots=True)
class StepFailure:
    """A failed step; keeps no exception, which would keep the step's tensors."""

    sequences: list[Sequence]  # they end with it, the others take their step again
    error: EngineError
    is_out_of_memory: bool = False


class FailureCount:
    """Decides what a failed step costs, and when the engine is past saving."""

    def __init__(self, errors: StepErrors) -> None:
        self._errors = errors
        self._num_in_a_row = 0
        self.end: EngineDead | None = None  # why no step can be computed any more

    def on_success(self) -> None:
        """Note that a step was computed: failures are counted in a row."""
        self._num_in_a_row = 0

    def on_error(self, error: Exception, chunks: list[Chunk]) -> StepFailure:
        reason = f"{type(error).__name__}: {error}"
        has_no_room = self._errors.is_out_of_memory(error)
        num_tokens = sum(chunk.num_tokens for chunk in chunks)
        is_theirs = has_no_room and num_tokens > NUM_TOKENS_ALWAYS_POSSIBLE
        sequences = [_largest(chunks)] if has_no_room else [chunk.sequence for chunk in chunks]
        ids = ", ".join(sequence.request.request_id for sequence in sequences)
        text = "".join(traceback.format_exception(error))
        log.error("A step failed with the requests %s\n%s", ids, text)
        if self._errors.is_lasting(error):
            self.end = EngineDead(f"no step can be computed any more: {reason}")
            sequences = []  # all end with the engine
        elif not is_theirs:
            self._count(reason, is_fatal=isinstance(error, FATAL))
        if has_no_room:
            no_room = OutOfMemory("out of memory while computing this request's next step")
            return StepFailure(sequences, no_room, is_out_of_memory=True)
        return StepFailure(sequences, RequestFailed(f"the step failed: {reason}"))

    def on_non_finite_logits(self, sequences: list[Sequence], *, are_all: bool) -> StepFailure:
        """The consequences of logits that are not finite; `are_all`: the step had no finite
        ones."""
        ids = ", ".join(sequence.request.request_id for sequence in sequences)
        reason = f"the logits of these requests are not finite: {ids}"
        log.error("%s", reason)
        if are_all:
            self._count(reason)
        return StepFailure(sequences, RequestFailed(f"the step failed: {reason}"))

    def _count(self, reason: str, *, is_fatal: bool = False) -> None:
        self._num_in_a_row += 1
        if is_fatal or self._num_in_a_row >= MAX_FAILED_STEPS:
            self.end = EngineDead(f"{self._num_in_a_row} steps failed in a row, at last: {reason}")


def _largest(chunks: list[Chunk]) -> Sequence:
    """The sequence with the most tokens; ties: the newest."""
    return max(chunks, key=lambda chunk: (chunk.num_tokens, chunk.sequence.rank)).sequence
