"""Custom tools: the client runs them on free text, not on JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from service.guide_lark import LarkError, ebnf_of_lark
from service.harmony.types import FreeText, Tool
from service.schemas.common import RequestModel


class PlainInput(RequestModel):
    type: Literal["text"]


class GrammarDefinition(RequestModel):
    """What the whole input is: a regular expression, or a grammar as Lark reads it."""

    syntax: Literal["regex", "lark"]
    definition: str = Field(min_length=1, max_length=100_000)

    @field_validator("definition")
    @classmethod
    def _check_definition(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("syntax") == "lark":
            try:
                ebnf_of_lark(value)
            except LarkError as error:
                reason = {"reason": str(error)}
                raise PydanticCustomError(
                    "invalid_grammar", "the grammar cannot be enforced: {reason}", reason
                ) from None
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
    if format is None or isinstance(format, PlainInput):
        return FreeText()
    given = format.grammar if isinstance(format, NestedGrammarInput) else format
    if given.syntax == "regex":
        return FreeText(given.definition)
    return FreeText(lark=given.definition, ebnf=ebnf_of_lark(given.definition))


def custom_names(tools: Iterable[Tool]) -> frozenset[str]:
    """The names of those that are custom."""
    return frozenset(tool.name for tool in tools if tool.free_text is not None)
