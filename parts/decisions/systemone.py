"""The body of POST /v1/systemone, TypeSafe's System One, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field

from parts.decisions import figures, wording
from parts.decisions.material import text_material
from parts.decisions.schema import MAX_QUESTIONS
from service.api.common.schema import RequestModel, ResponseModel
from service.decisions import AnswerScores, CodedQuestion, Material

Described = str | dict[str, Any] | list[Any]  # text, or JSON that the model reads as it is


class NoulQuestion(RequestModel):
    """Is it true? `criteria` says what is a yes, and what a no."""

    type: Literal["noul"]
    instructions: Described | None = None
    # No model with these fields: generators of Java clients do not escape `true`.
    criteria: dict[Literal["true", "false"], Described | None] | None = None


class NamedChoice(RequestModel):
    """Which of the options? `criteria` has them by name, with when each applies."""

    type: Literal["choice"]
    instructions: Described | None = None
    criteria: dict[str, Described | None] = Field(min_length=1, max_length=255)


class LevelScore(RequestModel):
    """Which of the ordered levels?"""

    type: Literal["score"]
    instructions: Described | None = None
    criteria: list[Described] = Field(min_length=1, max_length=10)


NamedQuestion = Annotated[NoulQuestion | NamedChoice | LevelScore, Discriminator("type")]


class SystemOneRequest(RequestModel):
    """A state, and questions about it by id."""

    model: str | None = None
    state: Described
    questions: dict[str, NamedQuestion] = Field(min_length=1, max_length=MAX_QUESTIONS)


class NoulAnswer(ResponseModel):
    """How likely it is true."""

    type: Literal["noul"]
    noul: float
    label_mass: float


class NamedChoiceAnswer(ResponseModel):
    """The likeliest option."""

    type: Literal["choice"]
    choice: str
    confidence: float
    probabilities: dict[str, float]
    label_mass: float


class LevelScoreAnswer(ResponseModel):
    """The expected level, the first being 0."""

    type: Literal["score"]
    score: float
    confidence: float
    legend: dict[str, Any]
    probabilities: dict[str, float]
    label_mass: float


class SystemOneUsage(ResponseModel):
    """Tokens of the request."""

    input_tokens: int
    output_tokens: int


class SystemOneAnswers(ResponseModel):
    """The answers by the ids of the questions."""

    model: str
    answers: dict[
        str, Annotated[NoulAnswer | NamedChoiceAnswer | LevelScoreAnswer, Discriminator("type")]
    ]
    usage: SystemOneUsage


def state_of(state: Described) -> Material:
    return text_material(wording.as_text(state), "state")


def system_one_questions(asked: Mapping[str, NamedQuestion]) -> list[CodedQuestion]:
    return [_question(each, f"questions.{id}") for id, each in asked.items()]


def _question(asked: NamedQuestion, path: str) -> CodedQuestion:
    text = _text(asked.instructions)
    if isinstance(asked, NoulQuestion):
        yes, no = (_text((asked.criteria or {}).get(answer)) for answer in ("true", "false"))
        return wording.predicate(text, path, yes, no)
    if isinstance(asked, NamedChoice):
        options = [(name, _text(when)) for name, when in asked.criteria.items()]
        return wording.choice(text, options, path)
    return wording.score(text, [(_text(level), "") for level in asked.criteria], path)


def _text(given: Described | None) -> str:
    return "" if given is None else wording.as_text(given)


def shown(asked: NamedQuestion, scores: AnswerScores) -> dict[str, Any]:
    each, answer = scores.probabilities, dict[str, Any](type=asked.type)
    if isinstance(asked, NoulQuestion):
        answer["noul"] = each[0]
    elif isinstance(asked, NamedChoice):
        names = list(asked.criteria)
        answer["choice"] = names[each.index(max(each))]
        answer["confidence"] = figures.choice_confidence(each)
        answer["probabilities"] = dict(zip(names, each, strict=True))
    else:
        names = [str(level) for level in range(len(asked.criteria))]
        answer["score"] = figures.expected(each)
        answer["confidence"] = figures.score_confidence(each)
        answer["legend"] = dict(zip(names, asked.criteria, strict=True))
        answer["probabilities"] = dict(zip(names, each, strict=True))
    return answer | {"label_mass": scores.mass}
