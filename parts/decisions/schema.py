"""The body of POST /v1/decisions, OpenAI's, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator
from pydantic_core import PydanticCustomError

from service.api.common.schema import Replayed, RequestModel, ResponseModel

MAX_QUESTIONS = 400

_PARTS = ("input_text", "output_text", "refusal", "input_json")


class DecisionText(Replayed):
    """Text."""

    type: Literal["input_text", "output_text"]
    text: str


class DecisionRefusal(Replayed):
    """A refusal in an earlier answer."""

    type: Literal["refusal"]
    refusal: str


class DecisionJson(Replayed):
    """An object, or several; the model reads it as JSON."""

    type: Literal["input_json"]
    data: dict[str, Any] | list[dict[str, Any]]


def _check_part(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in _PARTS:
        raise PydanticCustomError(
            "unsupported_part",
            "content parts of type {kind} are not supported: gpt-oss reads text only",
            {"kind": repr(kind[:64])},
        )
    return value


Part = Annotated[
    Annotated[DecisionText | DecisionRefusal | DecisionJson, Discriminator("type")],
    BeforeValidator(_check_part),
]


def _list_tag(value: Any) -> str:
    return "list" if isinstance(value, list) else "string"


Content = Annotated[
    Annotated[str, Tag("string")] | Annotated[list[Part], Field(min_length=1), Tag("list")],
    Discriminator(_list_tag),
]


class DecisionMessage(Replayed):
    """A message of any role; `type` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "developer", "system", "assistant"]
    content: Content
    phase: Literal["commentary", "final_answer"] | None = None


class _ToolItem(Replayed):
    call_id: str = Field(min_length=1, max_length=256)
    id: str | None = None
    status: str | None = None


class _Call(_ToolItem):
    name: str = Field(min_length=1, max_length=160, pattern=r"^[\w.-]+$")
    namespace: str | None = Field(None, max_length=64, pattern=r"^[\w-]+$")


class DecisionCall(_Call):
    """A call of a function."""

    type: Literal["function_call"]
    arguments: str


class DecisionCustomCall(_Call):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    input: str


class DecisionOutput(_ToolItem):
    """What a tool answered to the call `call_id`."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    output: Content


_TAGS = {
    "function_call": "call",
    "custom_tool_call": "custom",
    **dict.fromkeys(("function_call_output", "custom_tool_call_output"), "output"),
}


def _item_tag(value: Any) -> str:
    """A message may leave out its type; what is none of all gets a message's error."""
    kind = value.get("type") if isinstance(value, dict) else None
    return _TAGS.get(kind, "message") if isinstance(kind, str) else "message"


Item = Annotated[
    Annotated[DecisionMessage, Tag("message")]
    | Annotated[DecisionCall, Tag("call")]
    | Annotated[DecisionCustomCall, Tag("custom")]
    | Annotated[DecisionOutput, Tag("output")],
    Discriminator(_item_tag),
]


class PredicateQuestion(RequestModel):
    """How likely is a statement?"""

    type: Literal["predicate"]
    instructions: Content
    name: str | None = None


class DecisionOption(RequestModel):
    """An option of a choice."""

    value: str | bool
    description: str | None = None


class ChoiceQuestion(RequestModel):
    """Which of the options?"""

    type: Literal["choice"]
    instructions: Content
    choices: list[DecisionOption] = Field(min_length=2, max_length=255)
    name: str | None = None

    @field_validator("choices")
    @classmethod
    def _check_choices(cls, value: list[DecisionOption]) -> list[DecisionOption]:
        values = {(type(option.value), option.value) for option in value}
        if len(values) < len(value):
            raise PydanticCustomError("value_error", "two choices have the same value; remove one")
        return value


class DecisionLevel(RequestModel):
    """A level of a score."""

    label: str
    description: str | None = None


class ScoreQuestion(RequestModel):
    """Which of the ordered levels?"""

    type: Literal["score"]
    instructions: Content
    levels: list[DecisionLevel] = Field(min_length=2, max_length=10)
    name: str | None = None


AskedQuestion = Annotated[PredicateQuestion | ChoiceQuestion | ScoreQuestion, Discriminator("type")]


class DecisionReasoning(RequestModel):
    """Whether the model thinks before each answer."""

    effort: Literal["none", "low"] | None = None


class DecisionRequest(RequestModel):
    """A text or a conversation, and questions about it."""

    model: str | None = None
    input: Annotated[
        Annotated[str, Tag("string")] | Annotated[list[Item], Field(min_length=1), Tag("list")],
        Discriminator(_list_tag),
    ]
    questions: list[AskedQuestion] = Field(min_length=1, max_length=MAX_QUESTIONS)
    reasoning: DecisionReasoning | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Mapping[str, Any] | None = None
    safety_identifier: str | None = None


class PredicateAnswer(ResponseModel):
    """How likely the statement is."""

    type: Literal["predicate"]
    name: str | None
    probability: float
    label_mass: float


class OptionProbability(ResponseModel):
    """How likely an option is."""

    value: str | bool
    probability: float


class ChoiceAnswer(ResponseModel):
    """The likeliest option."""

    type: Literal["choice"]
    name: str | None
    choice: str | bool
    confidence: float
    probabilities: list[OptionProbability]
    label_mass: float


class LevelProbability(ResponseModel):
    """How likely a level is."""

    value: int
    label: str
    probability: float


class ScoreAnswer(ResponseModel):
    """The expected level, the first being 0."""

    type: Literal["score"]
    name: str | None
    score: float
    confidence: float
    probabilities: list[LevelProbability]
    label_mass: float


class RefusalAnswer(ResponseModel):
    """The model came to no answer."""

    type: Literal["refusal"]
    name: str | None


class DecisionInputDetails(ResponseModel):
    """Tokens of the input that were cached."""

    cached_tokens: int
    cache_write_tokens: int


class DecisionOutputDetails(ResponseModel):
    """Generated tokens that were thoughts."""

    reasoning_tokens: int


class DecisionUsage(ResponseModel):
    """Tokens of the request. The input counts once, whatever the number of questions."""

    input_tokens: int
    input_tokens_details: DecisionInputDetails
    output_tokens: int
    output_tokens_details: DecisionOutputDetails
    total_tokens: int


class Decision(ResponseModel):
    """The answers, in the order of the questions."""

    model: str
    answers: list[
        Annotated[
            PredicateAnswer | ChoiceAnswer | ScoreAnswer | RefusalAnswer, Discriminator("type")
        ]
    ]
    usage: DecisionUsage
