"""Input items of tools that have a type of their own, of other servers' tools, and of tools that
arrive during the conversation."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from pydantic import ConfigDict, Discriminator, Field, Tag

from parts.responses.schemas.tools import Tool
from service.api.common.schema import Replayed

ItemId = Annotated[str | None, Field(min_length=1, max_length=256)]
CallId = Annotated[str, Field(min_length=1, max_length=256)]
ItemStatus = Literal["in_progress", "completed", "incomplete"] | None
IgnoredObject = Annotated[dict[str, Any] | None, Field(description="Accepted without effect.")]
ArrivedTools = Annotated[list[Tool], Field(max_length=128)]


class ToolItemBase(Replayed):
    """The base of these items."""

    id: ItemId = None
    status: ItemStatus = None


class ShellAction(Replayed):
    """The commands of a `shell_call`."""

    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class ShellCallItem(ToolItemBase):
    """An earlier call of `shell`."""

    type: Literal["shell_call"]
    call_id: CallId
    action: ShellAction
    environment: IgnoredObject = None


class ShellOutcome(Replayed):
    """How the commands ended."""

    type: Literal["exit", "timeout"]
    exit_code: int | None = None


class ShellChunk(Replayed):
    """What commands printed."""

    model_config = ConfigDict(extra="ignore")

    stdout: str = ""
    stderr: str = ""
    outcome: ShellOutcome


_ShellOutput = Annotated[
    Annotated[str, Tag("string")] | Annotated[list[ShellChunk], Tag("chunks")],
    Discriminator(lambda value: "chunks" if isinstance(value, list) else "string"),
]


class ShellCallOutputItem(ToolItemBase):
    """What the client's shell answered."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["shell_call_output"]
    call_id: CallId
    output: _ShellOutput
    max_output_length: int | None = None


class LocalShellAction(Replayed):
    """The command of a `local_shell_call`."""

    type: Literal["exec"] = "exec"
    command: list[str]
    env: dict[str, str] | None = None
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class LocalShellCallItem(ToolItemBase):
    """An earlier call of `local_shell`."""

    type: Literal["local_shell_call"]
    call_id: CallId
    action: LocalShellAction


class LocalShellCallOutputItem(ToolItemBase):
    """What the client's command answered; `id` is the call's where there is no `call_id`."""

    type: Literal["local_shell_call_output"]
    call_id: CallId | None = None
    output: str


class PatchOperation(Replayed):
    """One file's change."""

    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str | None = None


class ApplyPatchCallItem(ToolItemBase):
    """An earlier call of `apply_patch`."""

    type: Literal["apply_patch_call"]
    call_id: CallId
    operation: PatchOperation


class ApplyPatchCallOutputItem(Replayed):
    """Whether the client applied it."""

    type: Literal["apply_patch_call_output"]
    id: ItemId = None
    call_id: CallId
    status: Literal["completed", "failed"]
    output: str | None = None


class ToolSearchCallItem(ToolItemBase):
    """An earlier call of `tool_search`; one without a `call_id` was another server's."""

    type: Literal["tool_search_call"]
    call_id: CallId | None = None
    execution: Literal["server", "client"] | None = None
    arguments: Any


class ToolSearchOutputItem(ToolItemBase):
    """What the search has found: these tools are offered from here on."""

    type: Literal["tool_search_output"]
    call_id: CallId | None = None
    execution: Literal["server", "client"] | None = None
    tools: ArrivedTools


class AdditionalToolsItem(Replayed):
    """These tools are offered from here on."""

    type: Literal["additional_tools"]
    id: ItemId = None
    role: Literal["developer"] | None = None
    tools: ArrivedTools


ForeignKind = Literal[
    "computer_call",
    "computer_call_output",
    "file_search_call",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "program",
    "program_output",
]
FOREIGN: Final[tuple[str, ...]] = get_args(ForeignKind)


class ForeignItem(Replayed):
    """What a tool of another server did: the model reads its text, or a line in its place."""

    model_config = ConfigDict(extra="allow")

    type: ForeignKind
    id: ItemId = None


ToolItem = (
    Annotated[ShellCallItem, Tag("shell_call")]
    | Annotated[ShellCallOutputItem, Tag("shell_call_output")]
    | Annotated[LocalShellCallItem, Tag("local_shell_call")]
    | Annotated[LocalShellCallOutputItem, Tag("local_shell_call_output")]
    | Annotated[ApplyPatchCallItem, Tag("apply_patch_call")]
    | Annotated[ApplyPatchCallOutputItem, Tag("apply_patch_call_output")]
    | Annotated[ToolSearchCallItem, Tag("tool_search_call")]
    | Annotated[ToolSearchOutputItem, Tag("tool_search_output")]
    | Annotated[AdditionalToolsItem, Tag("additional_tools")]
    | Annotated[ForeignItem, Tag("foreign")]
)
TOOL_ITEMS: Final = (
    "shell_call",
    "shell_call_output",
    "local_shell_call",
    "local_shell_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
    "tool_search_call",
    "tool_search_output",
    "additional_tools",
)
