"""Every name that the SDKs publish is known: parameters by our schemas, types by docs/api.md.

`make test-newest` runs this file with the newest SDKs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from parts.completions.schema import CompletionRequest
from parts.messages.schema import CountTokensRequest, MessagesRequest
from parts.responses.schemas.request import ResponseRequest
from service.api.chat.schema import ChatRequest
from tests.parts.families import sdk_names

SENT_AS_HEADERS = {"user_profile_id", "workspace_id", "betas"}  # by Anthropic's SDK


@pytest.mark.parametrize(
    ("schema", "module", "name"),
    [
        (ChatRequest, "openai.types.chat.completion_create_params", "Completion"),
        (CompletionRequest, "openai.types.completion_create_params", "Completion"),
        (ResponseRequest, "openai.types.responses.response_create_params", "Response"),
        (MessagesRequest, "anthropic.types.message_create_params", "Message"),
        (MessagesRequest, "anthropic.types.beta.message_create_params", "Message"),
    ],
)
def test_no_parameter_of_a_request_is_forgotten(
    schema: type[BaseModel], module: str, name: str
) -> None:
    parameters = [
        getattr(import_module(module), f"{name}CreateParams{kind}")
        for kind in ("NonStreaming", "Streaming")
    ]
    published = {field for each in parameters for field in each.__annotations__}
    assert {"model", "stream"} <= published
    assert published - SENT_AS_HEADERS - schema.model_fields.keys() == set()


def test_no_parameter_of_counting_is_forgotten() -> None:
    from anthropic.types.message_count_tokens_params import MessageCountTokensParams

    counted = {*MessageCountTokensParams.__annotations__}
    assert counted - SENT_AS_HEADERS - CountTokensRequest.model_fields.keys() == set()


Body = Callable[[str], tuple[type[BaseModel], dict[str, Any]]]
HI: dict[str, Any] = {"model": "x", "messages": [{"role": "user", "content": "x"}]}
ASKED: dict[str, Any] = {"model": "x", "input": "x"}
# A request with a type, for each row whose types can be told by the type alone.
BODIES: dict[str, Body] = {
    "chat tools": lambda name: (ChatRequest, {**HI, "tools": [{"type": name}]}),
    "responses items": lambda name: (ResponseRequest, {**ASKED, "input": [{"type": name}]}),
    "responses tools": lambda name: (ResponseRequest, {**ASKED, "tools": [{"type": name}]}),
    "responses tool choices": lambda name: (
        ResponseRequest,
        {**ASKED, "tool_choice": {"type": name}},
    ),
    "messages tools": lambda name: (
        MessagesRequest,
        {**HI, "max_tokens": 1, "tools": [{"type": name}]},
    ),
    "messages edits": lambda name: (
        MessagesRequest,
        {**HI, "max_tokens": 1, "context_management": {"edits": [{"type": name}]}},
    ),
}
REFUSALS = ("unsupported_part", "unsupported_value", "union_tag_invalid", "literal_error")
API = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")


def undated(name: str) -> str:
    return re.sub(r"[-_]20\d\d[-_]?\d\d[-_]?\d\d$", "", name)


def classes(label: str) -> list[set[str]]:
    """The names of a row of docs/api.md: supported, taken, refused."""
    _, _, section = API.partition("## Names in the SDKs")
    row = re.search(rf"^\| {label} \|(.*)\|(.*)\|(.*)\|$", section, re.MULTILINE)
    assert row is not None, f"docs/api.md has no row {label!r}"
    return [set(re.findall(r"`([^`]+)`", cell)) for cell in row.groups()]


@pytest.mark.parametrize("published", sdk_names.TYPES, ids=[each.label for each in sdk_names.TYPES])
def test_every_type_of_the_sdks_is_classed_and_served_as_its_class_says(
    published: sdk_names.Published,
) -> None:
    supported, taken, refused = classes(published.label)
    names = sdk_names.type_names(published)
    assert names
    known = supported | taken | refused
    assert {undated(name) for name in names} - known == set(), "class these in docs/api.md"
    assert len(known) == len(supported) + len(taken) + len(refused)
    if (body := BODIES.get(published.label)) is not None:
        wrong = {n for n in names if _is_refused(*body(n)) != (undated(n) in refused)}
        assert wrong == set(), "docs/api.md has these in the wrong class"


def _is_refused(schema: type[BaseModel], body: dict[str, Any]) -> bool:
    try:
        schema.model_validate(body)
    except ValidationError as error:
        return error.errors()[0]["type"] in REFUSALS
    return False


@pytest.mark.parametrize("parameter", sdk_names.OPTIONS)
def test_every_value_of_the_options_of_messages_is_taken(parameter: str) -> None:
    """Claude Code sends the newest ones, and asks again without them at the price of a request."""
    given = [*sdk_names.message_options(parameter)]
    assert given
    for value in given:
        MessagesRequest.model_validate({**HI, "max_tokens": 4096, parameter: value})


def test_every_beta_name_is_classed() -> None:
    names = sdk_names.beta_names()
    assert len(names) > 40
    assert {undated(name) for name in names} - set().union(*classes("betas")) == set()


@pytest.mark.parametrize(("family", "module", "name"), sdk_names.PARAMETERS)
def test_every_parameter_is_in_the_document(family: str, module: str, name: str) -> None:
    found = sdk_names.parameters(module, name) - SENT_AS_HEADERS
    assert {each for each in found if f"`{each}`" not in API} == set(), family
