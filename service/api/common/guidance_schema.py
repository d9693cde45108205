"""The fields that say which tools may be called and what the answer must look like."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from service.api.common.schema import Refused, RequestModel, refusing
from service.http.body import BodyError, BodyScan, check_shape, parse

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
        None, description="`true`: refused if any of the schema cannot be enforced."
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


def _of_text(value: Any) -> Any:
    """What vLLM also takes as the text of its JSON, within the bounds of a body."""
    if not isinstance(value, str):
        return value
    try:
        BodyScan().count(value[:_MAX_TEXT].encode())
        parsed = parse(value[:_MAX_TEXT].encode())
        check_shape(parsed)
    except BodyError as error:
        reason = {"reason": str(error.error).rstrip(".")}
        raise PydanticCustomError("invalid_json", "its text is no JSON: {reason}", reason) from None
    return parsed


_MAX_TEXT: Final = 1_000_000  # characters; a schema may have half of them
_OPTIONS: Final = {
    "disable_any_whitespace": "there is at most one blank between two tokens",
    "disable_additional_properties": "objects have only properties that the schema names",
    "disable_fallback": "there is one implementation",
    "whitespace_pattern": "there is at most one blank or line break between two tokens",
}


class StructuredOutputs(RequestModel):
    """Extension, with vLLM's names: exactly one says what the final message must be."""

    json_: Annotated[dict[str, Any], BeforeValidator(_of_text)] | None = Field(
        None, alias="json", description="A JSON Schema, or its text."
    )
    json_object: bool | None = None
    regex: Annotated[str, Field(min_length=1, max_length=100_000)] | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=10_000)] | None = None
    grammar: Annotated[str, Field(min_length=1, max_length=500_000)] | None = Field(
        None, description="llama.cpp's GBNF, its first rule `root`."
    )
    structural_tag: Annotated[StructuralTagFormat, BeforeValidator(_of_text)] | None = None
    disable_any_whitespace: Refused = None
    disable_additional_properties: Refused = None
    disable_fallback: Refused = None
    whitespace_pattern: Refused = None

    _refuse = refusing(_OPTIONS, harmless=(None, False))

    @model_validator(mode="after")
    def _check_one(self) -> StructuredOutputs:
        given = (getattr(self, name) for name in type(self).model_fields if name not in _OPTIONS)
        num_given = sum(value not in (None, False) for value in given)
        if num_given != 1:
            raise PydanticCustomError(
                "one_format",
                "give exactly one of json, json_object, regex, choice, grammar, structural_tag",
            )
        return self
