"""The body of POST /v1/moderations, OpenAI's, and its answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from service.api.common.schema import RequestModel, ResponseModel

MAX_INPUTS = 128


class ModeratedText(RequestModel):
    """A part of one content."""

    type: Literal["text"]
    text: str


def _check_part(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "text":
        raise PydanticCustomError(
            "unsupported_part",
            "content parts of type {kind} are not supported: gpt-oss reads text only",
            {"kind": repr(kind[:64])},
        )
    return value


def _tag(value: Any) -> str:
    if not isinstance(value, list):
        return "text"
    return "parts" if value and isinstance(value[0], dict) else "texts"


_Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]
_Parts = list[Annotated[ModeratedText, BeforeValidator(_check_part)]]


class ModerationRequest(RequestModel):
    """A text, several, or the parts of one content."""

    input: Annotated[
        Annotated[str, Tag("text")]
        | Annotated[_Texts, Tag("texts")]
        | Annotated[_Parts, Tag("parts")],
        Discriminator(_tag),
    ]
    model: str | None = None


class ModerationResult(ResponseModel):
    """What the policy says of one content."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text"]]]


class ModerationAnswer(ResponseModel):
    """A result for each content."""

    id: str
    model: str
    results: list[ModerationResult]
