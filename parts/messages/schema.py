"""The bodies of POST /v1/messages and /v1/messages/count_tokens.

Every field of Anthropic's published schema is one of: supported, accepted without effect
(texts.yaml), or refused with the reason (REFUSED). Anything else is an unknown field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from parts.messages.block_schema import OfferedTool, TextContent, Turns
from service.api.common.schema import Refused, RequestModel, StopString, TokenLimit, refusing

REFUSED: dict[str, str] = {
    "billing_policy": "the server does not bill",
    "container": "the server runs no code",
    "fallback_credit_token": "the server does not bill",
    "fallbacks": "there is one model",
    "inference_geo": "the server has no regions",
    "mcp_servers": "the operator connects tools, not a request; connect yours in the client",
    "thread": "the server stores no conversations; send all messages",
}


class ChoiceAuto(RequestModel):
    """The model chooses whether to call a tool."""

    type: Literal["auto"]
    disable_parallel_tool_use: bool | None = None


class ChoiceAny(RequestModel):
    """The model calls some tool."""

    type: Literal["any"]
    disable_parallel_tool_use: bool | None = None


class ChoiceTool(RequestModel):
    """The model calls this tool."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool | None = None


class ChoiceNone(RequestModel):
    """The model calls no tool."""

    type: Literal["none"]


GivenToolChoice = Annotated[
    ChoiceAuto | ChoiceAny | ChoiceTool | ChoiceNone, Field(discriminator="type")
]
Display = Literal["summarized", "omitted", "updates"]


class ThinkingEnabled(RequestModel):
    """The model thinks, within a budget of tokens."""

    type: Literal["enabled"]
    budget_tokens: int = Field(ge=1, lt=1 << 31)
    display: Display | None = None
    block_binding: dict[str, Any] | None = Field(None, description="Accepted: nothing is bound.")


class ThinkingAdaptive(RequestModel):
    """The model thinks as much as it takes."""

    type: Literal["adaptive"]
    display: Display | None = None
    block_binding: dict[str, Any] | None = Field(None, description="Accepted: nothing is bound.")


class ThinkingDisabled(RequestModel):
    """The model thinks as little as it can."""

    type: Literal["disabled", "between_tools"]


Thinking = Annotated[
    ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled, Field(discriminator="type")
]


class JSONFormat(RequestModel):
    """The answer is JSON of a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestModel):
    """How hard the model tries, and what its answer looks like."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JSONFormat | None = None
    task_budget: dict[str, Any] | None = Field(None, description="Accepted without effect.")


class MessageMetadata(RequestModel):
    """Whom the request is for."""

    user_id: str | None = None


class AllTurns(RequestModel):
    """The thoughts of all turns."""

    type: Literal["all"]


class ThinkingTurns(RequestModel):
    """The thoughts of the last turns."""

    type: Literal["thinking_turns"]
    value: int = Field(ge=1, lt=1 << 31)


def _keep_tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "word" if isinstance(value, str) else "turns" if kind == "thinking_turns" else "all"


class ClearThinking(RequestModel):
    """The thoughts of earlier turns leave the prompt."""

    type: Literal["clear_thinking_20251015"]
    keep: (
        Annotated[
            Annotated[Literal["all"], Tag("word")]
            | Annotated[AllTurns, Tag("all")]
            | Annotated[ThinkingTurns, Tag("turns")],
            Discriminator(_keep_tag),
        ]
        | None
    ) = Field(None, description="Left out: those of the last turn that has any.")

    @property
    def num_kept(self) -> int | None:
        """How many turns keep their thoughts; None: all."""
        if self.keep is None:
            return 1
        return self.keep.value if isinstance(self.keep, ThinkingTurns) else None


class TokensTrigger(RequestModel):
    """A prompt of more tokens."""

    type: Literal["input_tokens"]
    value: int = Field(ge=1, lt=1 << 31)


class CompactEdit(RequestModel):
    """A long conversation is summarized before it is answered."""

    type: Literal["compact_20260112"]
    trigger: TokensTrigger | None = Field(
        None, description="Default: 150,000 tokens, or three quarters of the context."
    )
    instructions: str | None = Field(None, description="Instead of the server's own.")
    pause_after_compaction: bool | None = Field(
        None, description="`true`: the answer is the compaction alone."
    )


class CompactionConfig(RequestModel):
    """The answer is a summary of the conversation, and nothing else."""

    type: Literal["summarize"]
    instructions: str | None = Field(None, description="Instead of the server's own.")


_EDITS = ("clear_thinking_20251015", "compact_20260112")


def _check_edit(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in _EDITS:
        raise PydanticCustomError(
            "unsupported_value",
            "edits of type {kind} are not supported: thoughts are cleared here, and histories "
            "compacted; leave out of the messages what shall not count",
            {"kind": repr(kind[:64])},
        )
    return value


class ContextManagement(RequestModel):
    """What leaves the prompt before the model reads it; the messages stay the client's."""

    edits: (
        list[
            Annotated[
                ClearThinking | CompactEdit,
                Field(discriminator="type"),
                BeforeValidator(_check_edit),
            ]
        ]
        | None
    ) = Field(None, max_length=16)


class CountTokensRequest(RequestModel):
    """A conversation in Anthropic's shape."""

    model: str | None = None
    messages: Turns
    system: TextContent | None = None
    tools: list[OfferedTool] | None = Field(None, max_length=128)
    tool_choice: GivenToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    speed: Literal["standard"] | None = None
    context_management: ContextManagement | None = None
    cache_control: Any = None

    billing_policy: Refused = None
    container: Refused = None
    fallback_credit_token: Refused = None
    fallbacks: Refused = None
    inference_geo: Refused = None
    mcp_servers: Refused = None
    thread: Refused = None

    _refuse = refusing({name: REFUSED[name] for name in REFUSED if name != "thread"})


class MessagesRequest(CountTokensRequest):
    """A conversation in Anthropic's shape, and how to answer it."""

    max_tokens: TokenLimit
    compaction: CompactionConfig | None = None
    stream: bool | None = None
    stop_sequences: list[StopString] | None = Field(None, max_length=16)
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=1 << 31)

    diagnostics: dict[str, Any] | None = None
    metadata: MessageMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
