"""The bodies of Ollama's API.

Every option of Ollama's is one of: supported, accepted without effect because it configures
Ollama's own runner (RUNNER), or refused with the reason (REFUSED).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from service.api.chat.schema import ChatFunctionTool
from service.api.common.schema import (
    CALLED_NAME,
    MAX_CALLED_CHARS,
    Refused,
    Replayed,
    RequestModel,
    Stop,
    refusing,
)

RUNNER: Final = frozenset(
    {
        *("f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch", "num_gpu", "num_keep"),
        *("num_thread", "numa", "use_mlock", "use_mmap", "vocab_only", "draft_num_predict"),
    }
)
_UNSUPPORTED: Final = {
    "mirostat": "is not supported here; set temperature, top_p or min_p",
    "penalize_newline": "is not supported here; repeat_penalty holds for every token",
    "repeat_last_n": "is not supported here but as -1: repeat_penalty looks at all of the context",
    "tfs_z": "is not supported here; set top_p or min_p",
    "typical_p": "is not supported here; set top_p or min_p",
}
_DURATION: Final = re.compile(r"[+-]?(\d+|(\d+(\.\d*)?(ns|us|µs|ms|s|m|h))+)")
_OFF: Final = re.compile(r"[+-]?(0+|(0+(\.0*)?(ns|us|µs|ms|s|m|h))+)")


def _check_duration(value: float | str) -> float | str:
    if isinstance(value, str) and not _DURATION.fullmatch(value[:64]):
        raise PydanticCustomError(
            "invalid_duration", "a duration is a number of seconds, or a text such as '5m'"
        )
    return value


def _kind_of(value: Any) -> str:
    return "text" if isinstance(value, str) else "other"


KeepAlive = Annotated[
    Annotated[float, Tag("other")] | Annotated[str, Tag("text")],
    Discriminator(_kind_of),
    AfterValidator(_check_duration),
    Field(description="Accepted without effect, but that 0 without a prompt is refused."),
]
Think = Annotated[
    Annotated[bool, Tag("other")] | Annotated[Literal["low", "medium", "high", "max"], Tag("text")],
    Discriminator(_kind_of),
    Field(description="`false`: little thinking, and none in the answer. Default: true."),
]
AskedFormat = Annotated[
    Annotated[dict[str, Any], Tag("other")] | Annotated[Literal["", "json"], Tag("text")],
    Discriminator(_kind_of),
    Field(description="`json`, or a JSON Schema."),
]


class OllamaOptions(RequestModel):
    """How tokens are chosen, and how many there may be."""

    ignored = RUNNER | {"mirostat_eta", "mirostat_tau"}

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=1 << 31)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63, description="-1: a random one.")
    num_predict: int | None = Field(None, ge=-2, lt=1 << 31, description="Below 1: no limit.")
    num_ctx: int | None = Field(
        None, ge=2, description="Tokens of prompt and answer; above the model's, the model's."
    )
    stop: Stop | None = None
    repeat_penalty: float | None = Field(None, gt=0, le=10)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)

    mirostat: Refused = None
    penalize_newline: Refused = None
    repeat_last_n: Refused = None
    tfs_z: Refused = None
    typical_p: Refused = None

    _refuse = refusing({name: _UNSUPPORTED[name] for name in ("tfs_z", "typical_p")}, (None, 1))
    _refuse_mirostat = refusing({"mirostat": _UNSUPPORTED["mirostat"]}, (None, 0))
    _refuse_newline = refusing({"penalize_newline": _UNSUPPORTED["penalize_newline"]}, (None, True))
    _refuse_window = refusing({"repeat_last_n": _UNSUPPORTED["repeat_last_n"]}, (None, -1))


class OllamaFunction(Replayed):
    """The function that an earlier answer called."""

    name: str = Field(min_length=1, max_length=MAX_CALLED_CHARS, pattern=CALLED_NAME)
    arguments: dict[str, Any] = Field(default_factory=dict)


class OllamaCall(Replayed):
    """An earlier answer's call of a function."""

    id: str | None = Field(None, max_length=256)
    type: Literal["function"] | None = None
    function: OllamaFunction


class OllamaMessage(Replayed):
    """A message of the conversation. A tool's result answers the call of its id; without one the
    first open call of its `tool_name`, or of any."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = Field(None, description="Refused: gpt-oss reads text only.")
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    name: str | None = Field(None, description="Accepted without effect.")


class ModelRequest(RequestModel):
    """The model that is asked for."""

    model: str


class OllamaShowRequest(RequestModel):
    """Which model to describe."""

    model: str | None = None
    name: str | None = Field(None, description="The older name of `model`.")
    verbose: bool | None = Field(None, description="Accepted without effect.")
    system: str | None = Field(None, description="Accepted without effect.")
    template: str | None = Field(None, description="Accepted without effect.")
    options: dict[str, Any] | None = Field(None, description="Accepted without effect.")


class AskedAnswer(ModelRequest):
    """What both routes take."""

    stream: bool | None = Field(None, description="Default: true.")
    format: AskedFormat | None = None
    options: OllamaOptions | None = None
    think: Think | None = None
    keep_alive: KeepAlive | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    truncate: bool | None = Field(
        None, description="Accepted without effect: what is too long is refused, never cut."
    )
    shift: bool | None = Field(None, description="Accepted without effect, as `truncate`.")

    @property
    def is_unload(self) -> bool:
        """Whether the model is to be unloaded, if there is nothing to answer."""
        asked = self.keep_alive
        return asked == 0 or (isinstance(asked, str) and _OFF.fullmatch(asked) is not None)


class OllamaChatRequest(AskedAnswer):
    """A conversation in Ollama's shape, and how to answer it."""

    messages: list[OllamaMessage] | None = Field(
        None, description="Without any, the answer says that the model is loaded."
    )
    tools: list[ChatFunctionTool] | None = Field(None, max_length=128)


_GENERATE: Final = {
    "context": "send the conversation to POST /api/chat",
    "images": "gpt-oss reads text only",
    "suffix": "gpt-oss was not trained to fill in before a suffix",
    "template": "the chat format is the model's own; send `raw` with the whole prompt",
}


class OllamaGenerateRequest(AskedAnswer):
    """A prompt, and how to answer it."""

    prompt: str | None = Field(
        None, description="Without one, the answer says that the model is loaded."
    )
    system: str | None = None
    raw: bool | None = Field(
        None, description="The prompt is continued word for word, control tokens included."
    )
    context: Refused = None
    images: Refused = None
    suffix: Refused = None
    template: Refused = None

    _refuse = refusing(_GENERATE, (None, "", []))
