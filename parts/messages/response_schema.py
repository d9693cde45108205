"""The answers of POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from service.api.common.metrics import ShownMetrics
from service.api.common.schema import ResponseModel

StopReason = Literal[
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "model_context_window_exceeded",
    "compaction",
]


class WebCitation(ResponseModel):
    """A page that the text cites, where it has gpt-oss's mark (`【0†L8-L9】`)."""

    type: Literal["web_search_result_location"] = "web_search_result_location"
    url: str = Field(description="Its URL.")
    title: str = Field(description="Its title.")
    encrypted_index: str = Field(description="Empty.")
    cited_text: str = Field(description="The lines that are cited, up to 150 characters.")


class TextAnswer(ResponseModel):
    """Text of the answer."""

    type: Literal["text"] = "text"
    text: str
    citations: list[WebCitation] = Field(description="Pages of the tool `browser`, in order.")


class ThinkingAnswer(ResponseModel):
    """Thoughts before the answer."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str


class DirectCaller(ResponseModel):
    """The model itself called."""

    type: Literal["direct"] = "direct"


class ToolUseAnswer(ResponseModel):
    """A call of a tool."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]
    caller: DirectCaller = DirectCaller()


class ServerToolUse(ResponseModel):
    """A call that this server ran: a search, or a page of what it found."""

    type: Literal["server_tool_use"] = "server_tool_use"
    id: str
    name: Literal["web_search", "web_fetch"]
    input: dict[str, Any]
    caller: DirectCaller = DirectCaller()


class ServerToolError(ResponseModel):
    """Why there is no result."""

    type: Literal["web_search_tool_result_error", "web_fetch_tool_result_error"]
    error_code: str


class SearchResult(ResponseModel):
    """A link that was found."""

    type: Literal["web_search_result"] = "web_search_result"
    title: str
    url: str
    encrypted_content: str = Field(description="The first link's has the text that was read.")
    page_age: str | None = None


class SearchResults(ResponseModel):
    """What a search has found."""

    type: Literal["web_search_tool_result"] = "web_search_tool_result"
    tool_use_id: str
    content: list[SearchResult] | ServerToolError


class FetchedPage(ResponseModel):
    """A page, as it was read."""

    type: Literal["web_fetch_result"] = "web_fetch_result"
    url: str
    content: dict[str, Any] = Field(description="A document of plain text.")
    retrieved_at: str | None = None


class FetchResult(ResponseModel):
    """What was read of a page."""

    type: Literal["web_fetch_tool_result"] = "web_fetch_tool_result"
    tool_use_id: str
    content: FetchedPage | ServerToolError


class ServerToolCounts(ResponseModel):
    """How often this server ran its tools."""

    web_search_requests: int
    web_fetch_requests: int


class MessageTokensDetails(ResponseModel):
    """Tokens of the answer that were thoughts."""

    thinking_tokens: int


class CacheCreation(ResponseModel):
    """Writing to the cache is free and not counted."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class MessageUsage(ResponseModel):
    """The prompt is `input_tokens` and the two cache counts together."""

    input_tokens: int
    cache_creation: CacheCreation = CacheCreation()
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: MessageTokensDetails
    service_tier: Literal["standard"] = "standard"
    server_tool_use: ServerToolCounts | None = None
    inference_geo: str | None = Field(None, description="Null: the server has no regions.")


class ClearedThinking(ResponseModel):
    """The thoughts of earlier turns that an edit took out of the prompt."""

    type: Literal["clear_thinking_20251015"] = "clear_thinking_20251015"
    cleared_thinking_turns: int
    cleared_input_tokens: int


class AppliedEdits(ResponseModel):
    """What was cleared from the context."""

    applied_edits: list[ClearedThinking]


class OriginalCount(ResponseModel):
    """Tokens of the prompt before the context was edited."""

    original_input_tokens: int


class CompactionAnswer(ResponseModel):
    """A summary of the conversation, to be sent back in its place."""

    type: Literal["compaction"] = "compaction"
    content: str
    encrypted_content: str = Field(description="What is read when the block is sent back.")


class Message(ResponseModel):
    """An answer that is not streamed."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[
        Annotated[
            TextAnswer
            | ThinkingAnswer
            | ToolUseAnswer
            | ServerToolUse
            | SearchResults
            | FetchResult
            | CompactionAnswer,
            Field(discriminator="type"),
        ]
    ]
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: dict[str, Any] | None = Field(
        None, description="Null: nothing is refused by a classifier."
    )
    container: dict[str, Any] | None = Field(None, description="Null: the server runs no code.")
    usage: MessageUsage
    metrics: ShownMetrics = None
    context_management: AppliedEdits | None = Field(None, description="Only on request.")


class TokenCount(ResponseModel):
    """How many tokens a request's prompt has."""

    input_tokens: int
    context_management: OriginalCount | None = Field(None, description="Only on request.")
