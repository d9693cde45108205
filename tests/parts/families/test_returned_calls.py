"""A tool that nobody offered: the client gets the call by its name, on every route."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

Fixture = Callable[..., Any]

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HELLO = [{"role": "user", "content": "Hi"}]
ARGUMENTS = '{"query": "é"}'
SEARCH = f"<|channel|>analysis to=browser.search code<|message|>{ARGUMENTS}<|call|>"
CODE = "<|channel|>analysis to=python code<|message|>print(1)<|call|>"


@pytest.fixture
def ask(make_runtime: Fixture, make_client: Fixture) -> Fixture:
    async def send(script: str, path: str, **body: Any) -> httpx2.Response:
        client = await make_client(make_runtime(script))
        answer: httpx2.Response = await client.post(path, json={"model": "gpt-oss-20b", **body})
        return answer

    return send


async def test_on_chat_completions(ask: Fixture) -> None:
    (choice,) = (await ask(SEARCH, CHAT, messages=HELLO)).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "browser.search", "arguments": ARGUMENTS}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "nothing"}
    again = await ask(SEARCH, CHAT + "/render", messages=[*HELLO, choice["message"], result])
    assert again.json()["prompt"].endswith(
        f"<|start|>assistant to=browser.search<|channel|>analysis code<|message|>{ARGUMENTS}"
        "<|call|><|start|>browser.search to=assistant<|channel|>analysis<|message|>nothing<|end|>"
        "<|start|>assistant"
    )


@pytest.mark.parametrize("tools", [[], [{"type": "web_search"}]])
async def test_on_responses(ask: Fixture, tools: list[Any]) -> None:
    answer = (await ask(SEARCH, RESPONSES, input="Hi", tools=tools)).json()
    (call,) = answer["output"]
    assert (call["type"], call["name"]) == ("function_call", "browser.search")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "nothing"}
    items = [{"role": "user", "content": "Hi"}, call, result]
    assert (await ask(SEARCH, RESPONSES, input=items)).status_code == 200


async def test_on_messages(ask: Fixture) -> None:
    answer = (await ask(SEARCH, MESSAGES, messages=HELLO, max_tokens=99)).json()
    assert answer["stop_reason"] == "tool_use"
    (block,) = answer["content"]
    assert (block["name"], block["input"]) == ("browser.search", {"query": "é"})
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "nothing"}
    turns = [
        *HELLO,
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [result]},
    ]
    assert (await ask(SEARCH, MESSAGES, messages=turns, max_tokens=99)).status_code == 200


async def test_a_function_of_that_name_is_the_function(ask: Fixture) -> None:
    tools = [{"type": "function", "function": {"name": "python"}}]
    (choice,) = (await ask(CODE, CHAT, messages=HELLO, tools=tools)).json()["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "python"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HELLO, "tool_choice": "none"}),
        (RESPONSES, {"input": "Hi", "tool_choice": "none"}),
        (MESSAGES, {"messages": HELLO, "max_tokens": 99, "tool_choice": {"type": "none"}}),
    ],
)
async def test_no_calls_means_no_calls(ask: Fixture, path: str, body: dict[str, Any]) -> None:
    answer = await ask(CODE, path, **body)
    assert answer.status_code == 200
    for sign in ('"tool_calls":[', '"tool_use"', '"function_call"'):
        assert sign not in answer.text


@pytest.mark.parametrize("tools", [[], ["get_weather"]])
@pytest.mark.parametrize(
    ("recipient", "name"),
    [
        ("functions.nope", "nope"),
        ("functions.GET_WEATHER", "GET_WEATHER"),
        ("functions.get-weather", "get-weather"),
        ("container.exec", "container.exec"),
        ("multi_tool_use.parallel", "multi_tool_use.parallel"),
        ("browser.search", "browser.search"),
    ],
)
async def test_whatever_is_called_keeps_its_name(
    ask: Fixture, tools: list[str], recipient: str, name: str
) -> None:
    """Agents answer "unknown tool" and the model recovers; nothing is what they cannot answer."""
    script = f"<|channel|>commentary to={recipient} json<|message|>{ARGUMENTS}<|call|>"
    functions = [{"type": "function", "function": {"name": tool}} for tool in tools]
    chat = (await ask(script, CHAT, messages=HELLO, tools=functions)).json()["choices"][0]
    (call,) = chat["message"]["tool_calls"]
    assert call["function"] == {"name": name, "arguments": ARGUMENTS}
    assert chat["finish_reason"] == "tool_calls"
    assert not chat["message"]["content"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "unknown tool"}
    again = await ask(script, CHAT + "/render", messages=[*HELLO, chat["message"], result])
    assert f"to={recipient}" in again.json()["prompt"]
    (item,) = (await ask(script, RESPONSES, input="Hi")).json()["output"]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", name, ARGUMENTS)
    (block,) = (await ask(script, MESSAGES, messages=HELLO, max_tokens=99)).json()["content"]
    assert (block["type"], block["name"]) == ("tool_use", name)


async def test_who_is_no_tool_is_not_called(ask: Fixture) -> None:
    for recipient in ("assistant", "user", "functions", "functions."):
        script = f"<|channel|>commentary to={recipient}<|message|>Hello<|return|>"
        message = (await ask(script, CHAT, messages=HELLO)).json()["choices"][0]["message"]
        assert "tool_calls" not in message
        assert "Hello" in str(message)
