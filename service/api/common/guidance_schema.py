"""The fields that say which tools may be called and what the answer must look like."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from service.api.common.schema import RequestModel

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
