"""The answers of the routes under /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from parts.responses.schemas.compaction import Compaction, KeptMessage
from parts.responses.schemas.request import ConversationReference
from service.answer.tiers import Tier
from service.api.common.metrics import ShownMetrics
from service.api.common.schema import ResponseModel, TokenLogprob

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ReasoningText(ResponseModel):
    """Text of the thoughts."""

    type: Literal["reasoning_text"]
    text: str


class OutputText(ResponseModel):
    """Text of the answer, with its tokens' log-probabilities."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class ReasoningItem(ResponseModel):
    """The chain of thought; send it back with the call's output while a tool loop runs."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]
    encrypted_content: str | None = Field(
        None, description="Only on request: what may be sent back without `content`."
    )


class OutputMessage(ResponseModel):
    """A message of the answer."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class FunctionCall(ResponseModel):
    """A call of a function."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    namespace: str | None = Field(None, description="Absent if there is none.")
    name: str
    arguments: str


class CustomToolCall(ResponseModel):
    """A call of a custom tool."""

    id: str
    type: Literal["custom_tool_call"]
    status: ItemStatus
    call_id: str
    namespace: str | None = Field(None, description="Absent if there is none.")
    name: str
    input: str


class _TypedCall(ResponseModel):
    id: str
    status: ItemStatus
    call_id: str


class ShellCommands(ResponseModel):
    """What the client is to run."""

    commands: list[str]
    timeout_ms: int | None
    max_output_length: int | None


class LocalMachine(ResponseModel):
    """The client's own machine."""

    type: Literal["local"]


class ShellCall(_TypedCall):
    """A call of the tool `shell`."""

    type: Literal["shell_call"]
    action: ShellCommands
    environment: LocalMachine


class LocalShellCommand(ResponseModel):
    """What the client is to run."""

    type: Literal["exec"]
    command: list[str]
    env: dict[str, str]
    timeout_ms: int | None
    user: str | None
    working_directory: str | None


class LocalShellCall(_TypedCall):
    """A call of the tool `local_shell`."""

    type: Literal["local_shell_call"]
    action: LocalShellCommand


class FileChange(ResponseModel):
    """What becomes of one file."""

    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str | None = Field(None, description="Absent for `delete_file`.")


class ApplyPatchCall(_TypedCall):
    """A call of the tool `apply_patch`."""

    type: Literal["apply_patch_call"]
    operation: FileChange


class ToolSearchCall(_TypedCall):
    """A call of the tool `tool_search`."""

    type: Literal["tool_search_call"]
    execution: Literal["client"]
    arguments: Any = Field(description="An object as the tool's `parameters` have it.")


class McpCall(ResponseModel):
    """What a built-in tool did that was asked for as an MCP server."""

    id: str
    type: Literal["mcp_call"]
    status: Literal["in_progress", "completed", "failed", "incomplete"]
    server_label: str
    name: str
    arguments: str
    output: str | None
    error: str | None
    approval_request_id: str | None


class WebSearchCall(ResponseModel):
    """What the built-in tool `browser` did; `name`, `arguments` and `output` are an extension."""

    id: str
    type: Literal["web_search_call"]
    status: Literal["in_progress", "completed", "failed", "incomplete"]
    action: dict[str, Any]
    name: str
    arguments: str
    output: str | None


class CodeLogs(ResponseModel):
    """What code printed."""

    type: Literal["logs"]
    logs: str


class CodeInterpreterCall(ResponseModel):
    """What the built-in tool `python` did."""

    id: str
    type: Literal["code_interpreter_call"]
    status: Literal["in_progress", "completed", "failed", "incomplete"]
    code: str
    container_id: str
    outputs: list[CodeLogs] | None


OutputItem = Annotated[
    ReasoningItem
    | OutputMessage
    | FunctionCall
    | CustomToolCall
    | ShellCall
    | LocalShellCall
    | ApplyPatchCall
    | ToolSearchCall
    | McpCall
    | WebSearchCall
    | CodeInterpreterCall
    | Compaction,
    Field(discriminator="type"),
]


class InputTokensDetails(ResponseModel):
    """Tokens of the input that were cached."""

    cached_tokens: int
    cache_write_tokens: int = Field(description="Always 0: it is not counted.")


class OutputTokensDetails(ResponseModel):
    """Tokens of the output that were thoughts."""

    reasoning_tokens: int


class ResponseUsage(ResponseModel):
    """How many tokens a response took."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class CompactedResponse(ResponseModel):
    """A compacted conversation: the input of the next response."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[KeptMessage | Compaction]
    usage: ResponseUsage


class ResponseError(ResponseModel):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(ResponseModel):
    """Why a response is not whole."""

    reason: Literal["max_output_tokens"]


class ChosenTools(ResponseModel):
    """The tool, or the tools, that the request named."""

    model_config = ConfigDict(extra="allow")

    type: str


class ResponseObject(ResponseModel):
    """A response, finished or not."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    background: bool
    completed_at: int | None
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    frequency_penalty: float
    presence_penalty: float
    parallel_tool_calls: bool
    previous_response_id: str | None
    conversation: ConversationReference | None = Field(None, description="Where it was added to.")
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: Tier
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | ChosenTools
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    metrics: ShownMetrics = None
    user: str | None


class InputTokens(ResponseModel):
    """How many tokens a request's input has."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class InputItemList(ResponseModel):
    """A page of a response's input items."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(ResponseModel):
    """A response that is gone."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True
