"""The streamed answers of this process, by the ids that their clients know."""

from __future__ import annotations

from enum import StrEnum
from weakref import WeakValueDictionary

from service.answer.generation import Generation


class ControlOutcome(StrEnum):
    """What became of the wish to end an answer's reasoning."""

    DONE = "done"
    TOO_LATE = "too late"  # it does not reason any more
    UNKNOWN = "unknown"  # no answer of this id runs for this tenant


class RunningAnswers:
    """Forgets an answer with its generation, which ends with the request."""

    def __init__(self) -> None:
        self._generations: WeakValueDictionary[str, Generation] = WeakValueDictionary()

    def add(self, id: str, generation: Generation) -> None:
        self._generations[id] = generation

    def end_reasoning(self, id: str, tenant: str) -> ControlOutcome:
        found = self._generations.get(id)
        if found is None or found.ended_at is not None or found.plan.context.tenant != tenant:
            return ControlOutcome.UNKNOWN
        return ControlOutcome.DONE if found.end_reasoning() else ControlOutcome.TOO_LATE
