"""Custom tools: the client runs them on free text, not on JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from service.harmony.types import FreeText, Tool
from service.schemas.common import RequestModel


class PlainInput(RequestModel):
    type: Literal["text"]


class GrammarDefinition(RequestModel):
    """A regular expression that the whole input matches."""

    syntax: Literal["regex", "lark"]
    definition: str = Field(min_length=1, max_length=100_000)

    @field_validator("syntax")
    @classmethod
    def _check_syntax(cls, value: str) -> str:
        if value == "lark":
            message = "grammars in Lark's syntax cannot be enforced here; send a regex, or text"
            raise PydanticCustomError("unsupported_value", message)
        return value


class GrammarInput(GrammarDefinition):
    """As the responses route has it."""

    type: Literal["grammar"]


class NestedGrammarInput(RequestModel):
    """As the chat route has it."""

    type: Literal["grammar"]
    grammar: GrammarDefinition


InputFormat = Annotated[PlainInput | GrammarInput, Field(discriminator="type")]
NestedInputFormat = Annotated[PlainInput | NestedGrammarInput, Field(discriminator="type")]


def free_text(format: PlainInput | GrammarInput | NestedGrammarInput | None) -> FreeText:
    """What the renderer and the grammar need to know of an input."""
    if isinstance(format, NestedGrammarInput):
        return FreeText(format.grammar.definition)
    return FreeText(format.definition if isinstance(format, GrammarInput) else None)


def custom_names(tools: Iterable[Tool]) -> frozenset[str]:
    """The names of those that are custom."""
    return frozenset(tool.name for tool in tools if tool.free_text is not None)
