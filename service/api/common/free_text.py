"""What the input of a custom tool may be: any text, or what a grammar has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.api.common.schema import RequestModel
from service.conversation import FreeText


class PlainInput(RequestModel):
    """The input is any text."""

    type: Literal["text"]


class GrammarDefinition(RequestModel):
    """What the whole input is: a regular expression, or a grammar as Lark reads it."""

    syntax: Literal["regex", "lark"]
    definition: str = Field(min_length=1, max_length=100_000)


class GrammarInput(GrammarDefinition):
    """The grammar of a custom tool's input, as the responses route has it."""

    type: Literal["grammar"]


class NestedGrammarInput(RequestModel):
    """The grammar of a custom tool's input, as the chat route has it."""

    type: Literal["grammar"]
    grammar: GrammarDefinition


InputFormat = Annotated[PlainInput | GrammarInput, Field(discriminator="type")]
NestedInputFormat = Annotated[PlainInput | NestedGrammarInput, Field(discriminator="type")]


def free_text(format: PlainInput | GrammarInput | NestedGrammarInput | None) -> FreeText:
    """A custom tool's input in the terms of renderer and grammar."""
    if format is None or isinstance(format, PlainInput):
        return FreeText()
    given = format.grammar if isinstance(format, NestedGrammarInput) else format
    if given.syntax == "regex":
        return FreeText(given.definition)
    return FreeText(lark=given.definition)
