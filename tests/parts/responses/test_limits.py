"""Quotas, deadlines, scopes and names hold for responses as for every route."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from auth.base import Scope
from parts.responses.schemas.request import ResponseRequest
from parts.responses.serving import SERVING
from parts.responses.store.base import StoreBounds
from parts.responses.store.sqlite import SqliteStore
from parts.responses.stored import store_of
from service.run.server import create_app
from service.settings.settings import load

PATH = "/v1/responses"
LONG = "<|channel|>final<|message|>" + "word " * 400 + "<|return|>"


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"background": True}])
async def test_requests_per_minute(
    make_runtime: Any, make_client: Any, named: Any, hello: str, more: dict[str, Any]
) -> None:
    runtime = make_runtime(hello, authenticator=named(requests_per_min=2))
    client = await make_client(runtime)
    body = {"model": "gpt-oss-20b", "input": "Hi"} | more
    answers = [await client.post(PATH, json=body, headers=key("ann")) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert "2 requests per minute" in answers[2].json()["error"]["message"]
    assert (await client.post(PATH, json=body, headers=key("bob"))).status_code == 200
    async with asyncio.timeout(60):
        while runtime.jobs.runs:
            await asyncio.sleep(0.01)


async def test_looking_at_stored_responses_counts_as_well(
    make_runtime: Any, make_client: Any, named: Any, hello: str
) -> None:
    client = await make_client(make_runtime(hello, authenticator=named(requests_per_min=2)))
    paths = ["/v1/responses/resp_a", "/v1/responses/resp_a/input_items", "/v1/responses/resp_b"]
    answers = [await client.get(path, headers=key("ann")) for path in paths]
    assert [answer.status_code for answer in answers] == [404, 404, 429]


async def test_a_background_response_fails_at_its_deadline(
    make_runtime: Any, make_client: Any
) -> None:
    runtime = make_runtime(LONG, step_s=0.02)
    client = await make_client(runtime)
    body = {"model": "gpt-oss-20b", "input": "Hi", "background": True}
    headers = {"X-Request-Timeout-Ms": "100"}
    created = (await client.post("/v1/responses", json=body, headers=headers)).json()
    async with asyncio.timeout(60):
        while runtime.jobs.runs:
            await asyncio.sleep(0.01)
    stored = (await client.get(f"/v1/responses/{created['id']}")).json()
    assert stored["status"] == "failed"
    assert "limit of 0.1 s" in json.dumps(stored["error"])
    assert (await runtime.engine.stats()).num_running == 0


async def test_every_name_is_served_and_the_first_is_answered(
    make_runtime: Any, make_client: Any, hello: str
) -> None:
    runtime = make_runtime(hello)
    model = replace(runtime.model, more_names=("mine",))
    client = await make_client(replace(runtime, model=model))
    answer = (await client.post(PATH, json={"model": "mine", "input": "Hi"})).json()
    assert answer["model"] == "gpt-oss-20b"


def test_its_routes_are_for_inference_and_described(make_runtime: Any, hello: str) -> None:
    app = create_app(make_runtime(hello))
    assert app.paths.row(PATH).scope is Scope.INFERENCE
    assert app.paths.row(f"{PATH}/resp_1/cancel").scope is Scope.INFERENCE
    document = app.openapi()
    content = document["paths"][PATH]["post"]["responses"]["200"]["content"]
    assert [*content] == ["application/json", "text/event-stream"]
    schema = document["components"]["schemas"][ResponseRequest.__name__]
    refused = {"prompt", "image", "moderation"}
    assert refused <= ResponseRequest.model_fields.keys()
    assert refused & schema["properties"].keys() == set()


def test_its_settings_reach_the_store(make_runtime: Any, hello: str) -> None:
    settings = load({"responses_max_age_s": 14_000.0, "responses_max_bytes": 15 << 20})
    runtime = SERVING.wire(make_runtime(hello), settings)
    assert runtime.of(StoreBounds) == StoreBounds(14_000.0, 15 << 20)
    store = store_of(runtime)
    assert isinstance(store, SqliteStore)
    assert store.database is runtime.database
