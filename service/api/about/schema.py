"""The schemas of the routes about the service itself, and of vLLM's about tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from service.api.about.codex import CodexModel
from service.api.chat.schema import ChatMessage, ChatRequest, Tool
from service.api.common.schema import Refused, RequestModel, ResponseModel, refusing


class ModelCard(ResponseModel):
    """One served model, in vLLM's shape."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "harmonium"
    root: str
    parent: str | None = None  # of an adapter: the model that it changes
    max_model_len: int


class ModelList(ResponseModel):
    """The models that are served."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
    models: list[CodexModel] | None = Field(
        None, exclude_if=lambda value: value is None, description="Only with `client_version`."
    )


class Health(ResponseModel):
    """Whether the service lives, or is ready."""

    object: Literal["health.response"] = "health.response"
    message: str
    engine: Literal["asleep"] | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="`asleep`: a request would wait for its start.",
    )


class Version(ResponseModel):
    """The version of this release."""

    release: str
    api: str


class VllmVersion(ResponseModel):
    """The version of this release, in vLLM's shape."""

    version: str


class Load(ResponseModel):
    """How much the server has to do."""

    server_load: int = Field(description="Running and waiting requests.")


class ModelInfo(ResponseModel):
    """What the model is, and the profile that serves it."""

    shortName: str
    modelUrl: str


class LicenseInfo(ResponseModel):
    """`name` is SPDX's; what follows `url` is there where we have the text."""

    name: str
    url: str
    path: str | None = Field(None, description="Path of the text on the server.")
    sha: str | None = Field(None, description="SHA-1 of the text, as in NIM.")
    size: int | None = Field(None, description="Characters of the text.")
    type: Literal["file"] | None = None
    content: str | None = None


class Manifest(ResponseModel):
    """The model manifest, in NIM's spelling."""

    manifest_file: str = Field(description="The content of the model manifest, in YAML.")
    repository_override: str = Field(description="`NIM_REPOSITORY_OVERRIDE`, or empty.")


class ProfileInfo(ResponseModel):
    """What was chosen to run on this machine, and why."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    engine: str
    precision: str
    goal: str
    hardware: str = Field(description="The board or generation it is for, or `cpu`.")
    num_devices: int = Field(description="GPUs of one engine; 1 on a CPU.")
    replicas: int
    max_model_len: int
    status: str = Field(
        description="`tuned` on such hardware, `published` values, `untuned`, or only `compiled`."
    )
    source: str = Field(description="Source and measurements of its values.")
    reason: str = Field(description="Why it was selected.")
    notes: list[str] = Field(description="Other options of this machine, and what they need.")


class SamplingDefaults(ResponseModel):
    """How tokens are drawn where a request does not say."""

    temperature: float
    top_p: float = 1.0


class EngineKilled(ResponseModel):
    """How many engine processes were killed; none while they restart."""

    killed: int


class Metadata(ResponseModel):
    """What runs here, in NIM's spelling; what follows `licenseInfo` is ours."""

    version: str
    modelInfo: list[ModelInfo]
    selectedModelProfileId: str
    assetInfo: list[str] = Field(description="Files that are served: source and SHA-256.")
    repository_override: str = Field(description="`NIM_REPOSITORY_OVERRIDE`, or empty.")
    licenseInfo: LicenseInfo | None = Field(None, description="Of the weights.")
    description: str
    profile: ProfileInfo | None = None
    tools: list[str] = Field(description="Built-in tools that are connected.")
    defaults: SamplingDefaults = Field(description="Defaults for requests that omit these fields.")
    may_kill_engine: bool = Field(description="Whether `POST /v1/engine/kill` is enabled.")
    compare_origins: list[str] = Field(
        description="Other servers that the playground may use: those in `NIM_CORS_ALLOW_ORIGINS`."
    )


_TEMPLATE = "the prompt format is the model's and cannot be changed"
REFUSED: dict[str, str] = {
    "chat_template": _TEMPLATE,
    "chat_template_kwargs": _TEMPLATE,
    "continue_final_message": "each answer starts a new message",
    "media_io_kwargs": "gpt-oss reads text only",
    "mm_processor_kwargs": "gpt-oss reads text only",
}

TokenId = Annotated[int, Field(ge=0)]


class TokenizeRequest(RequestModel):
    """Either a raw `prompt` or a conversation: `messages` with their `tools`."""

    model: str | None = None
    prompt: str | None = Field(
        None, description="Text, in which `<|start|>` and similar are control tokens."
    )
    messages: list[ChatMessage] | None = Field(None, min_length=1)
    tools: list[Tool] | None = Field(None, max_length=128)
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None

    add_special_tokens: bool | None = None
    chat_template: Refused = None
    chat_template_kwargs: Refused = None
    continue_final_message: Refused = None
    media_io_kwargs: Refused = None
    mm_processor_kwargs: Refused = None

    _refuse = refusing(REFUSED, harmless=(None, False))


class TokenizeResponse(ResponseModel):
    """`token_strs` has control tokens by name, and U+FFFD for parts of a character."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class TokenizerInfo(ResponseModel):
    """gpt-oss's tokenizer, in the names of a Hugging Face `tokenizer_config.json`."""

    tokenizer_class: str = "PreTrainedTokenizerFast"
    bos_token: str = "<|startoftext|>"
    eos_token: str = "<|return|>"
    pad_token: str = "<|endoftext|>"
    add_bos_token: bool = False
    add_eos_token: bool = False
    clean_up_tokenization_spaces: bool = False
    model_max_length: int
    chat_template: str | None = Field(
        None, description="Null: conversations are rendered by POST /v1/chat/completions/render."
    )


class DetokenizeRequest(RequestModel):
    """Token ids whose text is asked for."""

    model: str | None = None
    tokens: list[TokenId]


class DetokenizeResponse(ResponseModel):
    """The text of token ids."""

    prompt: str


class RenderChatRequest(ChatRequest):
    """A chat request, with what vLLM's render route takes besides."""

    add_generation_prompt: bool = True
    chat_template: Refused = None
    continue_final_message: Refused = None

    _refuse_template = refusing(
        {name: REFUSED[name] for name in ("chat_template", "continue_final_message")},
        harmless=(None, False),
    )


class RenderedPrompt(ResponseModel):
    """Exactly what the model would read for a chat request."""

    object: Literal["chat.completion.prompt"] = "chat.completion.prompt"
    model: str
    prompt: str
    token_ids: list[int]
    count: int
    max_model_len: int
