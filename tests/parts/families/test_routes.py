"""What each family's route has of the service: its quota, its scope, its names, its document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from auth.base import Scope
from parts.messages.schema import MessagesRequest
from service.run.server import create_app
from tests.service.admission.conftest import HELLO, Named

Fixture = Callable[..., Any]

HI = [{"role": "user", "content": "Hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 50},
}
COUNTED = ROUTES | {
    "/v1/messages/count_tokens": {"messages": HI},
    "/v1/completions/render": {"prompt": "Hi"},
}


@pytest.mark.parametrize("path", COUNTED)
async def test_a_callers_requests_are_counted(
    make_runtime: Fixture, make_client: Fixture, path: str
) -> None:
    client = await make_client(make_runtime(HELLO, authenticator=Named.limited(requests_per_min=2)))
    body = {"model": "gpt-oss-20b"} | COUNTED[path]
    key = {"Authorization": "Bearer ann"}
    answers = [await client.post(path, json=body, headers=key) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert "2 requests per minute" in answers[2].json()["error"]["message"]


@pytest.mark.parametrize("path", COUNTED)
def test_inference_is_what_they_need(make_runtime: Fixture, path: str) -> None:
    assert create_app(make_runtime("<|return|>")).paths.row(path).scope is Scope.INFERENCE


@pytest.mark.parametrize("path", ROUTES)
async def test_every_name_is_served_and_the_first_is_answered(
    make_runtime: Fixture, make_client: Fixture, path: str
) -> None:
    runtime = make_runtime(HELLO)
    model = replace(runtime.model, more_names=("mine",))
    client = await make_client(replace(runtime, model=model))
    answer = await client.post(path, json={"model": "mine", **ROUTES[path]})
    assert answer.json()["model"] == "gpt-oss-20b", answer.text


def test_the_document_has_streams_and_nothing_that_is_refused(make_runtime: Fixture) -> None:
    app = create_app(make_runtime("<|return|>"))
    app.router.routes = [each for each in app.router.routes if vars(each)["path"] in ROUTES]
    document = app.openapi()
    for path in ROUTES:
        content = document["paths"][path]["post"]["responses"]["200"]["content"]
        assert [*content] == ["application/json", "text/event-stream"]
    refused, schema = (
        {"mcp_servers", "container"},
        document["components"]["schemas"]["MessagesRequest"],
    )
    assert refused <= MessagesRequest.model_fields.keys()
    assert refused & schema["properties"].keys() == set()
    assert schema["additionalProperties"] is False


async def test_a_page_may_read_the_header_of_a_request_s_id(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    runtime = replace(make_runtime(HELLO), cors_origins=("https://app",))
    client = await make_client(runtime)
    answer = await client.get("/v1/models", headers={"Origin": "https://app"})
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {"X-Request-Id", "Request-Id"} <= {*exposed}
