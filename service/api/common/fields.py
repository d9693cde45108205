"""Fields that several families of the API have alike."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from service.api.common.common import RequestModel, ResponseModel

# A function's name; with dots, that of a tool which the model called though nobody offered it.
CALLED_NAME = r"^[\w.-]+$"
MAX_CALLED_CHARS = 160

TokenLimit = Annotated[int, Field(ge=1, lt=1 << 31)]
StopString = Annotated[str, Field(min_length=1, max_length=1024)]


def _stop_tag(value: Any) -> str:
    return "list" if isinstance(value, list) else "string"


Stop = Annotated[
    Annotated[StopString, Tag("string")]
    | Annotated[list[StopString], Field(max_length=16), Tag("list")],
    Discriminator(_stop_tag),
]


class StreamOptions(RequestModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = Field(
        None, description="Extension: every chunk has the usage until then."
    )
    include_obfuscation: bool | None = Field(None, description="Accepted without effect.")


class TopLogprob(ResponseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]
