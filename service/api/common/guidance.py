"""The fields that say which tools may be called and what the answer must look like, and what they
mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from service.api.common.schema import RequestModel
from service.errors import RequestError
from service.guide.answer import CHAT_FIELDS, TEXT, AnswerFormat, Fields

FunctionName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]


class FunctionReference(RequestModel):
    """A function by its name."""

    name: FunctionName


class NamedTool(RequestModel):
    """One of the tools, by its function's name."""

    type: Literal["function"]
    function: FunctionReference


class NamedCustomTool(RequestModel):
    """One of the custom tools."""

    type: Literal["custom"]
    custom: FunctionReference

    @property
    def function(self) -> FunctionReference:
        return self.custom


class AllowedFunctions(RequestModel):
    """Some of the tools, of which the model may or must call one."""

    mode: Literal["auto", "required"]
    tools: list[Annotated[NamedTool | NamedCustomTool, Field(discriminator="type")]] = Field(
        min_length=1, max_length=128
    )


class AllowedToolsChoice(RequestModel):
    """The choice of a tool among some."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctions


def _choice_tag(value: Any) -> str:
    if not isinstance(value, dict):
        return "mode"
    kind = value.get("type")
    return {"allowed_tools": "allowed", "custom": "custom"}.get(str(kind), "named")


GivenToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[NamedTool, Tag("named")]
    | Annotated[NamedCustomTool, Tag("custom")]
    | Annotated[AllowedToolsChoice, Tag("allowed")],
    Discriminator(_choice_tag),
]


class TextFormat(RequestModel):
    """The answer is any text."""

    type: Literal["text"]


class JSONObjectFormat(RequestModel):
    """The answer is some JSON object."""

    type: Literal["json_object"]


class JSONSchema(RequestModel):
    """A named JSON schema."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")
    description: str | None = Field(None, description="What it is for; the model reads it.")
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = Field(
        None, description="Accepted without effect: the schema is always enforced."
    )


class JSONSchemaFormat(RequestModel):
    """The answer is JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: JSONSchema


class StructuralTagFormat(RequestModel):
    """Extension: xgrammar's structural tag, for the text of the final message."""

    type: Literal["structural_tag"]
    format: dict[str, Any]


ResponseFormat = Annotated[
    TextFormat | JSONObjectFormat | JSONSchemaFormat | StructuralTagFormat,
    Field(discriminator="type"),
]


class StructuredOutputs(RequestModel):
    """Extension, with vLLM's names: exactly one says what the final message must be."""

    json_: dict[str, Any] | None = Field(None, alias="json", description="A JSON Schema.")
    json_object: Literal[True] | None = None
    regex: Annotated[str, Field(min_length=1, max_length=100_000)] | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=10_000)] | None = None
    grammar: Annotated[str, Field(min_length=1, max_length=500_000)] | None = Field(
        None, description="llama.cpp's GBNF, its first rule `root`."
    )
    structural_tag: StructuralTagFormat | None = None

    @model_validator(mode="after")
    def _check_one(self) -> StructuredOutputs:
        num_given = sum(value is not None for _, value in self)
        if num_given != 1:
            raise PydanticCustomError(
                "one_format",
                "give exactly one of json, json_object, regex, choice, grammar, structural_tag",
            )
        return self


def format_of(
    response_format: ResponseFormat | None, outputs: StructuredOutputs | None
) -> tuple[AnswerFormat, Fields]:
    """The answer's format and the field that sets it; raises RequestError if two do."""
    if outputs is None:
        return _text_format(response_format), CHAT_FIELDS
    if response_format is not None and response_format.type != "text":
        raise RequestError(
            "response_format and structured_outputs cannot be combined; send one of them.",
            param="structured_outputs",
        )
    format, field = _structured(outputs)
    place = f"structured_outputs.{field}"
    return format, replace(CHAT_FIELDS, format=place, schema=place)


def _text_format(format: ResponseFormat | None) -> AnswerFormat:
    match format:
        case JSONObjectFormat():
            return AnswerFormat("json_object")
        case JSONSchemaFormat():
            return AnswerFormat("json_schema", format.json_schema.schema_)
        case StructuralTagFormat():
            return AnswerFormat("structural_tag", format.format)
        case _:
            return TEXT


def _structured(outputs: StructuredOutputs) -> tuple[AnswerFormat, str]:
    """The one that was given, and its name."""
    if outputs.json_ is not None:
        return AnswerFormat("json_schema", outputs.json_), "json"
    if outputs.regex is not None:
        return AnswerFormat("regex", outputs.regex), "regex"
    if outputs.choice is not None:
        return AnswerFormat("choice", tuple(outputs.choice)), "choice"
    if outputs.grammar is not None:
        return AnswerFormat("grammar", outputs.grammar), "grammar"
    if outputs.structural_tag is not None:
        return AnswerFormat("structural_tag", outputs.structural_tag.format), "structural_tag"
    return AnswerFormat("json_object"), "json_object"
