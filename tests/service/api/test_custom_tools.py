"""Custom tools: called with free text, whole and streamed, and sent back as they came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

Fixture = Callable[..., Any]

CHAT = "/v1/chat/completions"
MODEL = "gpt-oss-20b"
HELLO: Any = [{"role": "user", "content": "Hi"}]
TEXT = 'print("é")\n'
CALL = f"<|channel|>commentary to=functions.run<|message|>{TEXT}<|call|>"
DATE = {"type": "grammar", "syntax": "regex", "definition": r"\d{4}-\d\d"}
RUN: Any = {"type": "custom", "custom": {"name": "run", "description": "Runs code."}}
WHEN: Any = {
    "type": "custom",
    "custom": {"name": "when", "format": {"type": "grammar", "grammar": DATE}},
}
F: Any = {"type": "function", "function": {"name": "f"}}


@pytest.fixture
async def http(make_runtime: Fixture, make_client: Fixture) -> Any:
    return await make_client(make_runtime(CALL))


@pytest.fixture
def sdk(http: Any, openai_sdk: Any) -> Any:
    return openai_sdk.AsyncOpenAI(base_url="http://service/v1", api_key="none", http_client=http)


async def test_on_chat_completions(sdk: Any, openai_sdk: Any, http: httpx2.AsyncClient) -> None:
    tools = [F, RUN]
    answer = await sdk.chat.completions.create(model=MODEL, messages=HELLO, tools=tools)
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call, openai_sdk.types.chat.ChatCompletionMessageCustomToolCall)
    assert (call.custom.name, call.custom.input) == ("run", TEXT)
    assert answer.choices[0].finish_reason == "tool_calls"
    result = {"role": "tool", "tool_call_id": call.id, "content": "é"}
    body = {"model": MODEL, "messages": [*HELLO, answer.choices[0].message.to_dict(), result]}
    rendered = await http.post(f"{CHAT}/render", json=body | {"tools": tools})
    prompt = rendered.json()["prompt"]
    assert (
        "// Runs code.\n// The input is free text: write it as it is, without JSON.\n"
        "type run = (_: string) => any;"
    ) in prompt
    assert (
        f"<|start|>assistant to=functions.run<|channel|>commentary<|message|>{TEXT}<|call|>"
        "<|start|>functions.run to=assistant<|channel|>commentary<|message|>é<|end|>"
    ) in prompt


async def test_streamed_on_chat_completions(http: httpx2.AsyncClient, events: Fixture) -> None:
    body = {"model": MODEL, "messages": HELLO, "tools": [RUN], "stream": True}
    chunks = events((await http.post(CHAT, json=body)).text)[:-1]
    calls = [c for chunk in chunks for c in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert calls[0]["type"] == "custom"
    assert calls[0]["custom"] == {"name": "run", "input": ""}
    assert all(set(call) == {"index", "custom"} for call in calls[1:])
    assert "".join(call["custom"]["input"] for call in calls) == TEXT
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"tools": [{"type": "custom", "custom": {}}]}, "tools[0].custom.name"),
        (CHAT, {"tools": [RUN, RUN]}, "tools[1].custom.name"),
        (CHAT, {"tool_choice": {"type": "custom", "custom": {"name": "g"}}}, "tool_choice"),
        (CHAT, {"tools": [WHEN]}, "tools[0].custom.format.grammar.type"),
    ],
)
async def test_what_is_wrong_is_named(
    http: httpx2.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    talk = {"messages": HELLO} if path == CHAT else {"input": "Hi"}
    answer = await http.post(path, json={"model": MODEL, **talk, **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_the_model_reads_a_grammar_as_it_was_sent(http: Any) -> None:
    lark = 'start: "a" B\nB: /b+/  // é'
    format = {"type": "grammar", "grammar": {"syntax": "lark", "definition": lark}}
    tools = [{"type": "custom", "custom": {"name": "ab", "format": format}}]
    rendered = await http.post(
        f"{CHAT}/render", json={"model": MODEL, "messages": HELLO, "tools": tools}
    )
    assert (
        "// It must follow this grammar, in Lark's syntax:\n"
        '// start: "a" B\n// B: /b+/  // é\ntype ab = (_: string) => any;'
    ) in rendered.json()["prompt"]
