"""What caches between here and a caller may keep: the pages, and nothing that is a caller's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

Fixture = Callable[..., Any]

ANSWER = "<|channel|>final<|message|>Hi.<|return|>"
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9},
}


@pytest.fixture
async def client(make_runtime: Fixture, make_client: Fixture) -> Any:
    return await make_client(make_runtime(ANSWER))


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", ASKED)
async def test_no_answer_is_kept_whole_or_streamed(
    client: Any, path: str, is_streamed: bool
) -> None:
    body = {"model": "gpt-oss-20b", "stream": is_streamed, **ASKED[path]}
    answer = await client.post(path, json=body)
    assert answer.status_code == 200
    assert answer.headers.get_list("cache-control") == ["no-store"]
    if is_streamed:
        assert answer.headers["x-accel-buffering"] == "no"


@pytest.mark.usefixtures("brief_document")
async def test_nothing_that_is_read_is_kept_and_no_error(client: Any) -> None:
    stored = (
        await client.post("/v1/responses", json={"model": "gpt-oss-20b", "input": "Hi"})
    ).json()
    own = f"/v1/responses/{stored['id']}"
    paths = [own, f"{own}?stream=true", f"{own}/input_items", "/v1/models", "/v1/metadata"]
    paths += ["/metrics", "/load", "/openapi.json", "/tokenizer_info", "/v1/health/ready"]
    answers = {path: await client.get(path) for path in paths}
    assert {path for path, answer in answers.items() if answer.status_code != 200} == set()
    for path in ("/v1/responses/resp_gone", "/v1/nothing", "/assets/nothing"):
        answers[path] = await client.get(path)
        assert answers[path].status_code == 404
    answers["tokens"] = await client.post("/tokenize", json={"prompt": "Hi"})
    answers["invalid"] = await client.post("/v1/chat/completions", json={"surprise": 1})
    kept = {path for path, a in answers.items() if a.headers.get("cache-control") != "no-store"}
    assert kept == set()


async def test_no_preflight_and_no_refused_origin_is_kept(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    runtime = replace(make_runtime(ANSWER), cors_origins=("https://known.example",))
    client = await make_client(runtime)
    for origin, status in (("https://known.example", 200), ("https://other.example", 400)):
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        answer = await client.options("/v1/chat/completions", headers=asked)
        assert answer.status_code == status
        assert answer.headers["cache-control"] == "no-store"
