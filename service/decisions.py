"""Questions with fixed answers about a text: what routes need of the part that answers them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from engines.base import Adapter
from service.answer.generation import Generation
from service.conversation import Message
from service.request import RequestContext

Effort = Literal["none", "low"]


@dataclass(frozen=True, slots=True)
class Material:
    """What questions are asked about."""

    messages: tuple[Message, ...]
    params: tuple[str, ...]  # the field that each message came from; the first is that of all

    @property
    def param(self) -> str:
        return self.params[0]


@dataclass(frozen=True, slots=True)
class CodedQuestion:
    """A question as the model reads it, and the codes with which it can be answered."""

    text: str
    codes: tuple[str, ...]  # each is one token where an answer begins
    param: str  # the field that it came from


@dataclass(frozen=True, slots=True)
class AnswerScores:
    """How likely each code of a question is as its answer."""

    probabilities: tuple[float, ...]  # of each code; together 1
    mass: float  # of all codes together, among all tokens


class Asking(Protocol):
    """Questions that are being answered."""

    @property
    def generation(self) -> Generation:
        """The work; the scores are there once all its steps were read."""

    def scores(self) -> list[AnswerScores | None]:
        """Of each question about each material, in order; None: the model came to no answer."""


@runtime_checkable
class Decider(Protocol):
    """In a Runtime's parts: asks the served model."""

    def on(self, adapter: Adapter | None) -> Decider:
        """One that asks the model with this adapter."""

    async def ask(
        self,
        materials: Sequence[Material],
        questions: Sequence[CodedQuestion],
        context: RequestContext,
        effort: Effort = "none",
    ) -> Asking:
        """Every question about every material; raises RequestError.

        With the `effort` low the model thinks before each answer.
        """
