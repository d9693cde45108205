"""What an answer's text is, and items that change it in the middle of a conversation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from parts.responses.schemas.tool_items import ItemId
from parts.responses.schemas.tools import FunctionName
from service.api.common.schema import Replayed, RequestModel
from service.conversation import Effort


class PlainText(RequestModel):
    """The answer is any text."""

    type: Literal["text"]


class JSONObjectText(RequestModel):
    """The answer is some JSON object."""

    type: Literal["json_object"]


class JSONSchemaText(RequestModel):
    """The answer is JSON of a schema."""

    type: Literal["json_schema"]
    name: FunctionName
    description: str | None = Field(None, description="What it is for; the model reads it.")
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = Field(
        None, description="`true`: refused if any of the schema cannot be enforced."
    )


TextFormat = Annotated[PlainText | JSONObjectText | JSONSchemaText, Field(discriminator="type")]


class UpdatedReasoning(RequestModel):
    """How much the model thinks from now on."""

    effort: Effort | None = None


class UpdatedText(RequestModel):
    """What the answers' text is from now on."""

    format: TextFormat


class ConfigurationUpdate(Replayed):
    """Settings that hold until a later update, whatever the request says."""

    type: Literal["configuration_update"]
    id: ItemId = None
    reasoning: UpdatedReasoning | None = None
    text: UpdatedText | None = None
