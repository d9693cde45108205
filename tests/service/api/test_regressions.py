"""Bugs of other servers (tests/regressions.md) that no other test shows us not to have."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from engines.base import EngineRequest
from service.harmony import vocabulary
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

PATH = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
STRICT = {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {}}}
CALL = (
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "a long one"}<|call|>'
)
FINAL = "<|start|>assistant<|channel|>final<|message|>Hello<|return|>"


@pytest.fixture
def post(make_runtime: Fixture, make_client: Fixture, chat_body: Fixture) -> Fixture:
    """Send one request to a service whose model writes `script`."""

    async def send(script: str, **changes: Any) -> httpx2.Response:
        client = await make_client(make_runtime(script))
        response: httpx2.Response = await client.post(PATH, json=chat_body(**changes))
        return response

    return send


@pytest.fixture
def prompt(make_runtime: Fixture, make_client: Fixture, chat_body: Fixture) -> Fixture:
    """Send one request; give the prompt that the engine got, as text."""

    async def send(**changes: Any) -> str:
        requests: list[EngineRequest] = []

        def script(request: EngineRequest) -> list[int]:
            requests.append(request)
            return [vocabulary.RETURN]

        client = await make_client(
            make_runtime(engine=FakeEngine(FakeOptions(script=(1,)), script))
        )
        response = await client.post(PATH, json=chat_body(**changes))
        assert response.status_code == 200, response.text
        return b"".join(map(vocabulary.decode_bytes, requests[0].prompt_token_ids)).decode()

    return send


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    "script",
    [
        " to=functions.f<|channel|>commentary to=functions.f json<|message|>{}<|call|>",
        "<|channel|>commentary to=functions.web-browsing to=functions.f<|message|>{}<|call|>",
        "<|channel|>analysis<|message|>Hm.<|end|>"
        + FINAL.replace("assistant", "assistantassistant"),
        "<|channel|><|message|>Hello<|return|>",
        "<|channel|>final Hello<|return|>",
        "<|channel|>commentary to=functions.f" + FINAL,
    ],
)
async def test_a_malformed_header_ends_no_request(
    post: Fixture, events: Fixture, script: str, is_streamed: bool
) -> None:
    """vllm#57099, vllm#51977, vllm#46464, sglang#9102, llama.cpp#27720: answered, not empty."""
    response = await post(script, tools=[TOOL], stream=is_streamed)
    assert response.status_code == 200
    assert '"error"' not in response.text
    assert "<|" not in response.text
    assert "Hello" in response.text or '"name":"f"' in response.text
    if is_streamed:
        assert events(response.text)[-1] == "[DONE]"


@pytest.mark.parametrize("end", ["<|return|>", "<|end|>" + FINAL])
async def test_a_refusal_without_a_header_is_the_content(post: Fixture, end: str) -> None:
    """vllm#23567, openai/harmony#80, llama.cpp#25321."""
    choice = (await post("I'm sorry, but no." + end)).json()["choices"][0]
    assert choice["message"]["content"].startswith("I'm sorry, but no.")
    assert choice["finish_reason"] == "stop"


async def test_ignore_eos_breaks_nothing(post: Fixture) -> None:
    """guidellm#979, NIM 1.12: what follows the end is text, never a 500."""
    response = await post(FINAL, ignore_eos=True, max_tokens=50)
    assert response.status_code == 200
    assert response.json()["usage"]["completion_tokens"] == 50
    assert "<|" not in response.text


async def test_every_instruction_reaches_the_prompt(prompt: Fixture) -> None:
    """sglang#13167, lmstudio#2264, Rapid-MLX#1765."""
    roles = ("system", "developer", "user", "system", "developer", "user")
    messages = [{"role": role, "content": f"Rule {n}."} for n, role in enumerate(roles)]
    text = await prompt(messages=messages)
    places = [text.index(f"Rule {n}.") for n in range(len(roles))]
    assert places == sorted(places)


@pytest.mark.parametrize("recipient", ["python", "browser.search", "functions.nope", "container"])
async def test_a_built_in_tool_that_nobody_offered_is_no_error(
    post: Fixture, recipient: str
) -> None:
    """vllm#27385: the client is told its name, and can say that it has no such tool."""
    response = await post(f"<|channel|>analysis to={recipient} code<|message|>x = 1<|call|>")
    assert response.status_code == 200
    choice = response.json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    name = recipient.removeprefix("functions.")
    assert call["function"] == {"name": name, "arguments": "x = 1"}
    assert choice["finish_reason"] == "tool_calls"


async def test_strict_tools_are_served_under_auto(post: Fixture) -> None:
    """sglang#19074: no 500."""
    tools = [{"type": "function", "function": STRICT}]
    response = await post(CALL, tools=tools, tool_choice="auto")
    assert response.json()["choices"][0]["finish_reason"] == "tool_calls"


async def test_one_request_leaves_nothing_for_the_next(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    """sglang#8914: a parser that was used before cannot be in the way."""
    cut = "<|channel|>commentary to=functions.f<|start|>"
    client = await make_client(make_runtime(cut, FINAL.removeprefix("<|start|>assistant")))
    await client.post(PATH, json=chat_body(tools=[TOOL], max_tokens=5))
    answer = (await client.post(PATH, json=chat_body(tools=[TOOL]))).json()
    assert answer["choices"][0]["message"]["content"] == "Hello"


async def test_arguments_are_streamed_as_they_come(post: Fixture, events: Fixture) -> None:
    """dynamo#9897, dynamo#3074, hermes-agent#12233: in pieces; id and name once."""
    response = await post(CALL, tools=[TOOL], stream=True)
    deltas = [e["choices"][0]["delta"] for e in events(response.text)[:-1]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [("id" in call, "name" in call["function"]) for call in calls].count((True, True)) == 1
    pieces = [call["function"].get("arguments", "") for call in calls]
    assert len([piece for piece in pieces if piece]) > 1
    assert json.loads("".join(pieces)) == {"a": "a long one"}


async def test_history_may_have_content_reasoning_and_calls(prompt: Fixture) -> None:
    """llama.cpp#19701: all three are kept, in the order in which they were written."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    turn = {
        "role": "assistant",
        "content": "Preamble.",
        "reasoning": "Thought.",
        "tool_calls": [call],
    }
    result = {"role": "tool", "tool_call_id": "c", "content": "Result."}
    messages = [{"role": "user", "content": "Hi"}, turn, result]
    text = await prompt(messages=messages, tools=[TOOL])
    places = [text.index(part) for part in ("Thought.", "Preamble.", '{"x":1}', "Result.")]
    assert places == sorted(places)
