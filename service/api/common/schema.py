"""What every request and response schema is built from, and the fields that several have alike."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from engines.fields import FIELDS, SAMPLING_FIELDS
from engines.fields import Field as Row
from service.answer.tiers import AskedTier, Tier

# What clients and gateways hang on the answers of other servers, and send back with the history:
# notes about the past, which nothing here depends on.
BAGGAGE: Final = frozenset(
    {
        "annotations",
        "cache_control",
        "caller",
        "citations",
        "copilot_cache_control",
        "copilot_confirmations",
        "copilot_references",
        "cot_id",
        "cot_summary",
        "created_by",
        "end_turn",
        "extra_content",
        "index",
        "internal_chat_message_metadata_passthrough",
        "logprobs",
        "parsed",
        "parsed_arguments",
        "prompt_cache_breakpoint",
        "provider_specific_fields",
        "reasoning_details",
        "reasoning_items",
        "thinking_blocks",
    }
)

NVEXT = (
    "NIM's extensions are separate fields here: `structured_outputs` for guided_json and its "
    "relatives, `thinking_token_budget` for max_thinking_tokens, `top_k`, `min_p`, "
    "`repetition_penalty`, `ignore_eos`, `min_tokens`"
)
_REFUSED: Final = {"type": "null"}
Refused = Annotated[Any, WithJsonSchema(_REFUSED)]
"""A field that must be null; the OpenAPI document does not have it."""

Bias = Annotated[float, Field(ge=-100, le=100)]


def _whole(value: Any) -> Any:
    """An integer that was written with a point, as JSON Schema has it: 64.0 is one, 64.5 is not."""
    return int(value) if type(value) is float and value.is_integer() else value


def _whole_items(value: Any) -> Any:
    """The same of a list, which may have a hundred thousand."""
    if type(value) is list and float in set(map(type, value)):
        return [_whole(item) for item in value]
    return value


def _fitted(schema: Any) -> Any:
    """A core schema of ours: lists are left at their first wrong item, integers may have a point.

    What is within it was fitted already where it is a model of ours.
    """
    if isinstance(schema, list):
        return [_fitted(part) for part in schema]
    if not isinstance(schema, dict) or schema.get("function", {}) in _WHOLE:
        return schema
    kind, is_list = schema.get("type"), False
    if kind == "list":
        schema["fail_fast"] = True
        is_list = schema.get("items_schema", {}).get("type") == "int"
    for key, part in schema.items():
        if key not in ("metadata", "serialization", "function") and not (is_list and key in _ITEMS):
            schema[key] = _fitted(part)
    if kind == "int" or is_list:
        return {"type": "function-before", "function": _WHOLE[is_list], "schema": schema}
    return schema


_ITEMS: Final = ("items_schema",)
_WHOLE: Final[tuple[dict[str, Any], ...]] = (
    {"type": "no-info", "function": _whole},
    {"type": "no-info", "function": _whole_items},
)


def refusing(reasons: Mapping[str, str], harmless: Sequence[object] = (None,)) -> Any:
    """Make the validator of the fields that are refused, each by its reason, unless harmless."""

    def refuse(value: Any, info: ValidationInfo) -> Any:
        if value not in harmless:
            reason = {"reason": reasons[str(info.field_name)]}
            raise PydanticCustomError("unsupported_field", "{reason}", reason)
        return value

    return field_validator(*reasons, mode="before")(refuse)


class RequestModel(BaseModel):
    """Strict: no coercion between types, no unknown field, no NaN.

    A field that is null asks for nothing, so that an unknown one is no error. A list is left at
    its first wrong item: a client gets one error, and each costs time.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=()
    )
    ignored: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.keys() <= _names(cls):
            return value
        return {name: field for name, field in value.items() if not cls._is_ignored(name, field)}

    @classmethod
    def _is_ignored(cls, name: str, value: Any) -> bool:
        return (value is None or name in cls.ignored) and name not in _names(cls)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        fitted: CoreSchema = _fitted(handler(source))
        return fitted

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core_schema))
        if schema.get("additionalProperties") is False:
            ignored = sorted(cls.ignored - _names(cls))
            schema["properties"] = {
                name: field
                for name, field in schema["properties"].items()
                if field.get("type") != _REFUSED["type"]
            } | {name: {"description": _IGNORED} for name in ignored}
        return schema


_IGNORED = "Accepted without effect."


class OfferedModel(RequestModel):
    """The base of a tool as it is offered, with hints for a prompt cache or without."""

    ignored = frozenset({"cache_control", "copilot_cache_control"})


class Replayed(RequestModel):
    """The base of a part of the history: what it says beside its content is left out."""

    ignored = BAGGAGE


@functools.cache
def _names(model: type[BaseModel]) -> frozenset[str]:
    """The names of a model's fields as clients write them."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


class ResponseModel(BaseModel):
    """The base of all schemas of answers."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core_schema))
        # A constant that tells the members of a union apart is always sent.
        constant = {name for name, field in schema["properties"].items() if "const" in field}
        if required := sorted({*schema.get("required", ()), *constant}):
            schema["required"] = required
        return schema


class PromptTokensDetails(ResponseModel):
    """Tokens of the prompt that were cached."""

    cached_tokens: int


class CompletionTokensDetails(ResponseModel):
    """Tokens of the answer that were thoughts."""

    reasoning_tokens: int


class Usage(ResponseModel):
    """Tokens of one request, all its choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


# A function's name; with dots, that of a tool which the model called although it was not offered.
CALLED_NAME = r"^[\w.-]+$"
MAX_CALLED_CHARS = 160

PromptLogprobsCount = Annotated[int | None, Field(ge=0, le=20)]
TokenLimit = Annotated[int, Field(ge=1, lt=1 << 31)]
StopString = Annotated[str, Field(min_length=1, max_length=1024)]


def _stop_tag(value: Any) -> str:
    return "list" if isinstance(value, list) else "string"


Stop = Annotated[
    Annotated[StopString, Tag("string")]
    | Annotated[list[StopString], Field(max_length=16), Tag("list")],
    Discriminator(_stop_tag),
]


ShownStopReason = Annotated[
    str | int | None,
    Field(
        exclude_if=lambda value: value is None,
        description="As in vLLM: the stop string, or the id of the request's stop token, that "
        "ended the answer. Absent if none did.",
    ),
]


class PromptLogprob(ResponseModel):
    """A candidate token for one place of the prompt."""

    logprob: float
    rank: int = Field(description="1: the likeliest.")
    decoded_token: str


ShownTier = Annotated[
    Tier | None,
    Field(
        exclude_if=lambda value: value is None,
        description="The tier that was used, if the request names one.",
    ),
]
ShownPromptLogprobs = Annotated[
    list[dict[str, PromptLogprob] | None] | None,
    Field(
        exclude_if=lambda value: value is None,
        description="By token id, for each prompt token except the first, if requested.",
    ),
]


class StreamOptions(RequestModel):
    """What a stream has beside the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = Field(
        None, description="Extension: every chunk has the usage until then."
    )
    include_obfuscation: bool | None = Field(None, description="Accepted without effect.")


class TopLogprob(ResponseModel):
    """One of the likeliest tokens at a place."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token, and the likeliest at its place."""

    top_logprobs: list[TopLogprob]


_KINDS: Final[Mapping[str, Any]] = {"logit_bias": dict[str, Bias]}  # keys of JSON are strings


def _model_of(name: str, rows: Iterable[Row], doc: str | None = None) -> type[RequestModel]:
    """Rows of the table as a model; of the parts of a field, those without a default are needed."""
    fields: dict[str, Any] = {}
    for row in rows:
        bounds: dict[str, Any] = {**row.bounds}
        kind = _KINDS.get(row.name, row.kind)
        if row.parts:
            kind = _model_of(row.kind.__name__, row.parts, row.kind.__doc__)
        if row.api is None and row.default is None:
            fields[row.name] = (kind, Field(**bounds))
        else:
            fields[row.name] = (kind | None, Field(None, **bounds))
    return create_model(name, __base__=RequestModel, __doc__=doc, **fields)


if TYPE_CHECKING:

    class _FieldsOfTable(RequestModel):
        """Those that code reads or sets by name."""

        temperature: float | None = None
        top_p: float | None = None
        top_k: int | None = None
        presence_penalty: float | None = None
        frequency_penalty: float | None = None
        logit_bias: dict[str, Bias] | None = None
        min_tokens: int | None = None
        ignore_eos: bool | None = None
        stop_token_ids: list[int] | None = None
        include_stop_str_in_output: bool | None = None
        cache_salt: str | None = None
        priority: int | None = None
else:
    _FieldsOfTable = _model_of("_FieldsOfTable", [row for row in FIELDS if row.api is not None])


class SamplingFields(_FieldsOfTable):
    """OpenAI's, and the extensions of the open-source servers: the table of engines/fields.py."""

    service_tier: AskedTier | None = None

    def passed_on(self) -> dict[str, Any]:
        """The fields that engines get as they are, as far as they were sent."""
        given = self.model_dump(include={*_PASSED_ON}, exclude_none=True)
        return {name: _PASSED_ON[name].read(value) for name, value in given.items()}


_PASSED_ON: Final = {row.name: row for row in SAMPLING_FIELDS if row.api and row.name not in _KINDS}
