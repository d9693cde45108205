"""Built-in tools on chat completions: run within the answer, which shows what came of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engines.base import EngineRequest
from service.harmony.vocabulary import decode_marked
from tests.needs import needs

Fixture = Callable[..., Any]
Script = dict[str, str]

CHAT = "/v1/chat/completions"
CODE: dict[str, Any] = {"type": "code_interpreter"}
F = {"type": "function", "function": {"name": "f"}}
THOUGHT = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant"


def body(**changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "2 + 2?"}]
    return {"model": "gpt-oss-20b", "messages": messages, "tools": [CODE]} | changes


async def test_the_answer_goes_on_behind_the_call(
    service: Fixture, script: Script, prompts: list[EngineRequest], events: Fixture
) -> None:
    first = THOUGHT.format("Compute.") + script["python"].format("print(2 + 2)")
    client = await service(first, THOUGHT.format("So four.") + script["final"])
    answer = (await client.post(CHAT, json=body())).json()
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "It is 4."
    assert choice["message"]["reasoning"] == "Compute.\n\nSo four."
    assert "tool_calls" not in choice["message"]
    assert "python to=assistant<|channel|>analysis<|message|>4\n<|end|>" in decode_marked(
        prompts[1].prompt_token_ids
    )
    asked = body(stream=True, stream_options={"include_usage": True})
    *chunks, last, done = events((await client.post(CHAT, json=asked)).text)
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == "It is 4."
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == "Compute.\n\nSo four."
    for count in ("prompt_tokens", "completion_tokens"):
        assert last["usage"][count] == answer["usage"][count]


@needs("responses")
async def test_it_counts_as_much_as_a_response(service: Fixture, script: Script) -> None:
    first = THOUGHT.format("Compute.") + script["python"].format("print(2 + 2)")
    client = await service(first, THOUGHT.format("So four.") + script["final"])
    counted = (await client.post(CHAT, json=body())).json()["usage"]
    responses = {"model": "gpt-oss-20b", "input": "2 + 2?", "tools": [CODE]}
    other = (await client.post("/v1/responses", json=responses)).json()["usage"]
    assert other["output_tokens"] == counted["completion_tokens"]
    assert other["input_tokens"] == counted["prompt_tokens"]


async def test_a_function_may_be_called_after_it(service: Fixture, script: Script) -> None:
    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    client = await service(script["search"], call)
    answer = await client.post(CHAT, json=body(tools=[F], web_search_options={}))
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert [c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["f"]


async def test_every_choice_and_every_token_is_its_own(service: Fixture, script: Script) -> None:
    client = await service(script["python"].format("print(4)"), script["final"])
    one = (await client.post(CHAT, json=body(logprobs=True))).json()
    (choice,) = one["choices"]
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == "It is 4."
    both = await client.post(CHAT, json=body(tools=[CODE, F], n=2, stop="is"))
    assert [c["message"]["content"] for c in both.json()["choices"]] == ["It ", "It "]


async def test_the_prompt_can_be_seen(service: Fixture, script: Script) -> None:
    client = await service(script["final"])
    rendered = (await client.post(f"{CHAT}/render", json=body(web_search_options={}))).json()
    assert "# Tools\n\n## browser\n" in rendered["prompt"]
    assert "## python\n" in rendered["prompt"]
    tokens = (await client.post("/tokenize", json=body())).json()
    assert tokens["count"] < rendered["count"]
    hidden = (await client.post(f"{CHAT}/render", json=body(tool_choice="none"))).json()
    assert "## python\n" not in hidden["prompt"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"web_search_options": {}}, "web_search_options"),
        ({"tools": [CODE, {"type": "web_search"}]}, "tools[1].type"),
    ],
)
async def test_what_is_not_connected_is_refused_by_name(
    service: Fixture,
    script: Script,
    tool_urls: dict[str, str],
    changes: dict[str, Any],
    param: str,
) -> None:
    client = await service(script["final"], urls={"python": tool_urls["mcp"]})
    answer = await client.post(CHAT, json=body(**changes))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert "NIM_BROWSER_MCP_URL" in answer.json()["error"]["message"]
