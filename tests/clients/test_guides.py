"""VS Code's and n8n's guides: the requests that their files lead to are answered."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from tests.clients.conftest import DOCUMENTED_URL, MODEL, Server
from tests.guides.pages import block

pytestmark = pytest.mark.clients

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
ASKED = [{"role": "user", "content": "How is the weather?"}]


def ask(server: Server, url: str, **body: Any) -> Any:
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body else None
    url = url.replace(DOCUMENTED_URL, server.url)
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:
        return json.load(answer)


def test_vs_code(server: Server) -> None:
    [group] = json.loads(block("vscode", "json"))
    [model] = group["models"]
    assert (group["vendor"], group["apiType"]) == ("customendpoint", "chat-completions")
    assert model["maxInputTokens"] + model["maxOutputTokens"] == 131_072
    answer = ask(
        server,
        model["url"],
        model=MODEL,
        messages=ASKED,
        tools=[TOOL] if model["toolCalling"] else [],
        reasoning_effort=model["supportsReasoningEffort"][0],
        max_tokens=model["maxOutputTokens"],
    )
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


def test_n8n(server: Server) -> None:
    [credential] = json.loads(block("n8n", "json"))
    assert credential["type"] == "openAiApi"
    url = credential["data"]["url"]
    assert MODEL in [each["id"] for each in ask(server, f"{url}/models")["data"]]
    answer = ask(server, f"{url}/chat/completions", model=MODEL, messages=ASKED, tools=[TOOL])
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    answer = ask(server, f"{url}/responses", model=MODEL, input=ASKED)
    assert answer["status"] == "completed"
