"""One matrix of fields over the four routes that generate: taken, without effect, or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from engines.base import EngineRequest
from parts.completions import schema as text
from parts.messages import schema as messages
from parts.messages.block_schema import MessageTool
from parts.responses.schemas import request as responses
from parts.responses.schemas.tools import HOSTED_TOOLS
from service.api.chat import schema as chat
from service.run.texts import Descriptions
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.parts.families.table import BODIES, CHAT, MESSAGES, MODEL, RESPONSES, TEXT

Fixture = Callable[..., Any]
Fields = dict[str, Any]

DOCS = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
HOSTED = [{"type": kind, "anything": {"goes": 1}} for kind in sorted(HOSTED_TOOLS)]


@dataclass(frozen=True)
class Route:
    """What the API's family says of its fields."""

    path: str
    schema: type[BaseModel]
    refused: dict[str, str]
    section: str  # of docs/api.md
    without_effect: tuple[Fields, ...]  # values that change no token


ROUTES = {
    "chat": Route(
        CHAT,
        chat.ChatRequest,
        chat.REFUSED,
        DOCS,
        (
            {"user": "someone"},
            {"metadata": {"team": "a"}},
            {"store": True},
            {"service_tier": "auto"},
            {"safety_identifier": "someone"},
            {"prompt_cache_key": "key"},
            {"prompt_cache_retention": "24h"},
            {"prompt_cache_options": {"mode": "implicit"}},
            {"verbosity": "medium"},
            {"modalities": ["text"]},
            {"response_format": {"type": "text"}},
            {"parallel_tool_calls": True},
            {"tool_choice": "auto"},
            {"stream": False},
            {"stream": True, "stream_options": {"include_obfuscation": True}},
        ),
    ),
    "text": Route(
        TEXT,
        text.CompletionRequest,
        text.REFUSED,
        DOCS,
        ({"user": "someone"}, {"stream": True, "stream_options": {"include_obfuscation": True}}),
    ),
    "responses": Route(
        RESPONSES,
        responses.ResponseRequest,
        responses.REFUSED,
        DOCS[DOCS.index("## Responses") : DOCS.index("## Text completions")],
        (
            {"client_metadata": {"session": "1"}},
            {"max_tool_calls": 3},
            {"user": "someone"},
            {"service_tier": "auto"},
            {"safety_identifier": "someone"},
            {"prompt_cache_key": "key"},
            {"prompt_cache_retention": "24h"},
            {"prompt_cache_options": {"mode": "implicit"}},
            {"include": ["reasoning.encrypted_content", "file_search_call.results"]},
            {"metadata": {"team": "a"}},
            {"store": False},
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            {"text": {"format": {"type": "text"}, "verbosity": "medium"}},
            {"reasoning": {"effort": "medium", "summary": "auto", "mode": "standard"}},
            {"truncation": "auto"},
            {"tool_choice": "auto", "parallel_tool_calls": True},
            {"tools": HOSTED},  # codex#10635: offered unasked, they do not end in an error
        ),
    ),
    "messages": Route(
        MESSAGES,
        messages.MessagesRequest,
        messages.REFUSED,
        DOCS[DOCS.index("## Messages") :],
        (
            {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
            {"diagnostics": {"previous_message_id": None}},
            {"metadata": {"user_id": "someone"}},
            {"service_tier": "auto"},
            {"stream": True},
        ),
    ),
}


def no_effect(route: Route) -> dict[str, str]:
    """The fields that the document says have no effect, with the reason."""
    words, effect = Descriptions(), "Accepted without effect: "
    said = {name: words.of(route.schema.__name__, name) for name in route.schema.model_fields}
    return {
        name: why.removeprefix(effect)[:-1] for name, why in said.items() if why.startswith(effect)
    }


# A field's name where it differs: chat, text, responses, messages.
NAMES = {
    "limit": ("max_tokens", "max_tokens", "max_output_tokens", "max_tokens"),
    "stops": ("stop", "stop", "stop", "stop_sequences"),
}
OK, NONE = "", "not a field"
# A field, a value, and what each route says of it: a word of the refusal, or OK.
VALUES: list[tuple[Any, ...]] = [
    ("colour", "red", NONE, NONE, NONE, NONE),
    ("colour", None, OK, OK, OK, OK),
    ("stream", "yes", *["boolean"] * 4),
    ("temperature", 1.0, OK, OK, OK, OK),
    ("temperature", 1.5, OK, OK, OK, "1.5"),
    ("temperature", 2.1, *["2.1"] * 4),
    ("temperature", "0.5", *["number"] * 4),
    ("temperature", True, *["number"] * 4),
    ("top_p", 0, *["greater than 0"] * 4),
    ("top_p", 1.1, *["1.1"] * 4),
    ("top_k", -1, OK, OK, OK, "-1"),
    ("top_k", -2, *["-2"] * 4),
    ("min_p", 0.5, OK, OK, OK, NONE),
    ("min_p", 1.5, "1.5", "1.5", "1.5", NONE),
    ("presence_penalty", -2, OK, OK, OK, NONE),
    ("presence_penalty", -3, "-3", "-3", "-3", NONE),
    ("frequency_penalty", 3, "3", "3", "3", NONE),
    ("repetition_penalty", 0, "greater than 0", "greater than 0", "greater than 0", NONE),
    ("limit", 0, *["0"] * 4),
    ("limit", 1.5, *["integer"] * 4),
    ("limit", 10**25, *["less than"] * 4),
    ("min_tokens", -1, "-1", "-1", "-1", NONE),
    ("ignore_eos", "yes", "boolean", "boolean", "boolean", NONE),
    ("n", 2, OK, OK, NONE, NONE),
    ("n", 0, "0", "0", NONE, NONE),
    ("n", 129, "128", "128", NONE, NONE),
    ("seed", 7, OK, OK, OK, NONE),
    ("seed", 2**63, "less than", "less than", "less than", NONE),
    ("priority", 2**31, "less than", "less than", "less than", NONE),
    ("repetition_detection", {"max_pattern_size": 8, "min_count": 3}, OK, OK, OK, NONE),
    ("repetition_detection", {"max_pattern_size": 8}, *["min_count is required"] * 3, NONE),
    ("repetition_detection", {"max_pattern_size": 0, "min_count": 3}, *["0"] * 3, NONE),
    ("repetition_detection", {"max_pattern_size": 8, "min_count": 1}, *["1"] * 3, NONE),
    ("repetition_detection", True, *["dictionary"] * 3, NONE),
    ("logit_bias", {"5": 2}, OK, OK, OK, NONE),
    ("logit_bias", {"x": 1}, "'x'", "'x'", "'x'", NONE),
    ("logit_bias", {"-1": 1}, "'-1'", "'-1'", "'-1'", NONE),
    ("logit_bias", {"٣": 1}, "token ids", "token ids", "token ids", NONE),
    ("logit_bias", {"201088": 1}, "201087", "201087", "201087", NONE),
    ("logit_bias", {"1": 101}, "100", "100", "100", NONE),
    ("stops", ["a", "b"], OK, OK, OK, OK),
    ("stops", ["a"] * 17, *["16"] * 4),
    ("stops", ["a", ""], *["at least 1"] * 4),
    ("stop", "", "at least 1", "at least 1", "at least 1", NONE),
    ("logprobs", 1, "boolean", OK, NONE, NONE),
    ("logprobs", True, OK, "integer", NONE, NONE),
    ("top_logprobs", 21, "20", NONE, "20", NONE),
    ("stream_options", {"include_usage": True}, "stream: true", "stream: true", "stream", NONE),
    ("tools", [], OK, NONE, OK, OK),
    ("tools", "f", "list", NONE, "list", "list"),
    ("tool_choice", "never", "auto", NONE, "auto", "dictionary"),
    ("echo", True, NONE, OK, NONE, NONE),
    ("thinking", {"type": "disabled"}, NONE, NONE, NONE, OK),
    ("background", False, NONE, NONE, OK, NONE),
]


def _each(fields: Callable[[Route], Any]) -> list[Any]:
    """A case for each field of each route."""
    return [
        pytest.param(
            route, field, id=f"{name}-{field if isinstance(field, str) else next(iter(field))}"
        )
        for name, route in ROUTES.items()
        for field in fields(route)
    ]


over_routes = pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)


@pytest.fixture
def seen() -> list[EngineRequest]:
    """What reached the engine."""
    return []


@pytest.fixture
async def post(make_client: Fixture, make_runtime: Fixture, seen: list[EngineRequest]) -> Fixture:
    def script(request: EngineRequest) -> list[int]:
        seen.append(request)
        return [200002]

    client = await make_client(make_runtime(engine=FakeEngine(FakeOptions(script=(1,)), script)))

    async def send(route: Route, **changes: Any) -> httpx2.Response:
        body = MODEL | BODIES[route.path] | changes
        response: httpx2.Response = await client.post(
            route.path, json=body, headers={"X-Request-Id": "same"}
        )
        return response

    return send


def refusal(response: httpx2.Response) -> dict[str, Any]:
    """The error of a 400, in either API's shape; where there is a code, it is the client's."""
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error


@over_routes
def test_the_page_names_every_field_and_every_reason(route: Route) -> None:
    fields = {*route.schema.model_fields} - {"reasoning", "text"}  # their parts are
    fields |= {*MessageTool.model_fields} if route is ROUTES["messages"] else set()
    assert [name for name in fields if f"`{name}" not in route.section] == []
    reasons = (no_effect(route) | route.refused).values()
    assert [reason for reason in reasons if reason not in route.section] == []


@over_routes
def test_each_field_without_effect_is_tried_here(route: Route) -> None:
    assert {name for fields in route.without_effect for name in fields} >= no_effect(route).keys()


@pytest.mark.parametrize(("route", "fields"), _each(lambda route: route.without_effect))
async def test_a_field_without_effect_changes_nothing(
    post: Fixture, seen: list[EngineRequest], route: Route, fields: Fields
) -> None:
    for changes in ({}, fields):
        response = await post(route, **changes)
        assert response.status_code == 200, response.text
    without, with_it = (replace(request, max_wait_s=None) for request in seen)  # it runs down
    assert without == with_it


@pytest.mark.parametrize(("route", "name"), _each(lambda route: route.refused))
async def test_a_refused_field_is_named_with_the_reason(
    post: Fixture, route: Route, name: str
) -> None:
    error = refusal(await post(route, **{name: {"x": 1}}))
    assert error["message"].startswith(name)
    assert route.refused[name] in error["message"]
    assert error.get("code", "unsupported_parameter") == "unsupported_parameter"
    assert error.get("param", name) == name


@over_routes
async def test_null_is_the_same_as_leaving_a_field_out(post: Fixture, route: Route) -> None:
    for name in sorted(route.schema.model_fields.keys() - BODIES[route.path] - {"model"}):
        response = await post(route, **{name: None})
        assert response.status_code == 200, f"{name}: {response.text}"


@pytest.mark.parametrize("number", range(4), ids=ROUTES)
async def test_a_value_is_taken_or_refused_by_its_path(post: Fixture, number: int) -> None:
    for field, value, *said in VALUES:
        name = NAMES[field][number] if field in NAMES else field
        response = await post([*ROUTES.values()][number], **{name: value})
        if not said[number]:
            assert response.status_code == 200, f"{name}={value}: {response.text}"
            continue
        error = refusal(response)
        assert error["message"].startswith(name)
        assert said[number] in error["message"], f"{name}={value}"
        assert error.get("param", name).startswith(name)


@over_routes
async def test_an_unknown_model_is_a_404_that_names_the_served_one(
    post: Fixture, route: Route
) -> None:
    response = await post(route, model="gpt-17")
    assert response.status_code == 404
    message = response.json()["error"]["message"]
    assert "gpt-17" in message
    assert "gpt-oss-20b" in message
