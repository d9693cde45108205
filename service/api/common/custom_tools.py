"""Custom tools: the client runs them on free text, not on JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.api.common.schema import RequestModel
from service.harmony.types import FreeText


class PlainInput(RequestModel):
    type: Literal["text"]


class GrammarDefinition(RequestModel):
    """What the whole input is: a regular expression, or a grammar as Lark reads it."""

    syntax: Literal["regex", "lark"]
    definition: str = Field(min_length=1, max_length=100_000)


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
    return FreeText(lark=given.definition)
