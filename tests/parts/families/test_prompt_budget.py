"""The context is a bound of prompts, refused in words that clients know; a limit is clamped."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from service.api.common import prompt

Fixture = Any


LONG, LONGER = "a" * 40_000, "a" * 200_000  # tokens: 5,000, and more than are counted
TURN = {"role": "user", "content": "Hi"}


@pytest.fixture
async def client(make_runtime: Fixture, make_client: Fixture) -> Any:
    return await make_client(make_runtime("<|channel|>final<|message|>Hi.", max_model_len=1500))


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        ("/v1/chat/completions", {"messages": [TURN] * 500}, "messages"),
        ("/v1/chat/completions/render", {"messages": [TURN] * 500}, "messages"),
        ("/v1/completions", {"prompt": LONG}, "prompt"),
        ("/v1/completions", {"prompt": ["Hi", LONG]}, "prompt[1]"),
        ("/v1/responses", {"input": LONG}, "input"),
        ("/v1/messages", {"messages": [TURN] * 500, "max_tokens": 9}, "messages"),
    ],
)
async def test_a_prompt_beyond_the_context_is_refused_by_its_field(
    client: Any, path: str, body: dict[str, Any], param: str
) -> None:
    response = await client.post(path, json={"model": "gpt-oss-20b", **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    details = error.get("details", error)
    assert details["param"] == param
    assert details.get("error_code", error.get("code")) == "context_length_exceeded"
    assert param in error["message"] or path == "/v1/messages"  # in Anthropic's own words


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "word " * 4000}),
        ("/tokenize", {"messages": [{"role": "user", "content": "word " * 4000}]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "word " * 4000}]}),
    ],
)
async def test_counting_goes_beyond_the_context_and_has_a_bound_of_its_own(
    client: Any, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "gpt-oss-20b", **body}
    assert (await client.post(path, json=body)).status_code == 200
    monkeypatch.setattr(prompt, "MAX_COUNTED", 1000)
    response = await client.post(path, json=body)
    assert response.status_code == 400
    assert "This route takes 1000 tokens" in response.json()["error"]["message"]


WORDS = "word " * 200  # 200 tokens, and one for the last blank


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "{}"}]}),
        ("/v1/responses", {"input": "{}"}),
        ("/v1/completions", {"prompt": "{}"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "{}"}], "max_tokens": 9}),
    ],
)
async def test_an_overflow_is_told_in_the_words_that_clients_read(
    make_runtime: Fixture,
    make_client: Fixture,
    path: str,
    body: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """litellm, OpenHands, pi, LangChain and Claude Code look for them, or read the numbers."""
    monkeypatch.setattr(prompt, "MAX_COUNTED", 10_000)
    runtime = make_runtime("<|channel|>final<|message|>Hi.", max_model_len=200)
    client = await make_client(runtime)

    async def refusal(text: str) -> str:
        asked = json.loads(json.dumps({"model": "gpt-oss-20b", **body}).replace("{}", text))
        response = await client.post(path, json=asked)
        assert response.status_code == 400, response.text
        return str(response.json()["error"]["message"])

    anthropic = re.compile(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)")
    openai = re.compile(
        r"maximum context length is (?P<most>\d+) tokens\. However, your (\w+) resulted in "
        r"(at least )?(?P<found>\d+) tokens.*\. Please reduce the length of the \2 "
        r"\(context_length_exceeded\)\.$"
    )
    for text in (WORDS, 40 * WORDS, LONGER):
        message = await refusal(text)
        if path == "/v1/messages":
            found, most = map(int, anthropic.search(message).groups())  # type: ignore[union-attr]
        else:
            match = openai.search(message)
            assert match, message
            found, most = int(match["found"]), int(match["most"])
        assert most == 200
        if text == LONGER:
            assert "at least" in message
            assert found == 10_001
        else:
            assert 0 <= found - len(text) // len("word ") < 150, "the prompt is counted whole"


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        ("/v1/chat/completions", {"messages": [TURN]}, "max_tokens"),
        ("/v1/chat/completions", {"messages": [TURN]}, "max_completion_tokens"),
        ("/v1/responses", {"input": "Hi"}, "max_output_tokens"),
        ("/v1/responses", {"input": "Hi", "truncation": "auto"}, "max_output_tokens"),
        ("/v1/completions", {"prompt": "Hi"}, "max_tokens"),
        ("/v1/messages", {"messages": [TURN]}, "max_tokens"),
    ],
)
async def test_a_limit_beyond_what_the_prompt_leaves_is_an_upper_bound(
    make_runtime: Fixture, make_client: Fixture, path: str, body: dict[str, Any], limit: str
) -> None:
    endless = "<|channel|>final<|message|>" + "word " * 400
    client = await make_client(make_runtime(endless, max_model_len=200))
    asked = {"model": "gpt-oss-20b", **body, limit: 131_072}
    response = await client.post(path, json=asked)
    assert response.status_code == 200, response.text
    answer = response.json()
    usage = answer["usage"]
    counts = {"prompt_tokens", "completion_tokens", "input_tokens", "output_tokens"}
    assert sum(number for name, number in usage.items() if name in counts) == 200
    ended = answer.get("choices", [answer])[0]
    reasons = (ended.get("finish_reason"), ended.get("status"), ended.get("stop_reason"))
    assert {*reasons} & {"length", "incomplete", "model_context_window_exceeded"}


async def test_each_of_several_prompts_has_the_room_that_it_leaves(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    client = await make_client(make_runtime("word " * 400, max_model_len=200))
    body = {"model": "gpt-oss-20b", "prompt": [[100] * 190, [100] * 10], "max_tokens": 150}
    answer = (await client.post("/v1/completions", json=body)).json()
    assert [len(choice["text"].split()) for choice in answer["choices"]] == [10, 150]


async def test_a_tool_that_takes_too_long_to_describe_is_named(
    client: Any, chat_body: Fixture
) -> None:
    defs = {"d": {"description": "word " * 20_000}}
    properties = {f"p{i}": {"$ref": "#/$defs/d"} for i in range(1000)}
    function = {"name": "look_up", "parameters": {"$defs": defs, "properties": properties}}
    body = chat_body(tools=[{"type": "function", "function": function}])
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("tools", "schema_too_complex")
    assert "'look_up'" in error["message"]
