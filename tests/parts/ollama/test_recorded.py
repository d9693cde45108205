"""The requests of programs that know Ollama's API, as they send them, written anew."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.parts.ollama.test_chat import HELLO, heard, prompt_of

Fixture = Callable[..., Any]

TURN_ON = {
    "type": "function",
    "function": {
        "name": "HassTurnOn",
        "description": "Turns on a device or entity",
        "parameters": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "domain": {"type": "array", "items": {"type": "string"}},
            },
            "required": [],
        },
    },
}


async def test_home_assistant(make_ollama: Fixture, make_client: Fixture, lines: Fixture) -> None:
    """It lists the models to choose from, then streams, and sends results without a name."""
    call = (
        "<|channel|>commentary to=functions.HassTurnOn <|constrain|>json<|message|>"
        '{"name": "Lamp"}<|call|>'
    )
    client = await make_client(make_ollama(call))
    [model, *_] = [each["model"] for each in (await client.get("/api/tags")).json()["models"]]
    body = {
        "model": model,
        "messages": [
            {"role": "system", "content": "You are a voice assistant for Home Assistant."},
            {"role": "user", "content": "Turn on the lamp"},
        ],
        "tools": [TURN_ON],
        "stream": True,
        "options": {"num_ctx": 8192},
        "keep_alive": "-1s",
        "think": False,
    }
    pieces = lines((await client.post("/api/chat", json=body)).text)
    [called] = [piece["message"] for piece in pieces if "tool_calls" in piece["message"]]
    [made] = called["tool_calls"]
    assert made["function"]["arguments"] == {"name": "Lamp"}
    engine, seen = heard()
    runtime = make_ollama(engine=engine)
    client = await make_client(runtime)
    sent_back = {"function": {"name": "HassTurnOn", "arguments": {"name": "Lamp"}}}
    history = [
        *body["messages"],
        {"role": "assistant", "content": "", "tool_calls": [sent_back]},
        {"role": "tool", "content": '{"speech": {}, "response_type": "action_done"}'},
    ]
    pieces = lines((await client.post("/api/chat", json=body | {"messages": history})).text)
    assert "".join(piece["message"]["content"] for piece in pieces) == "Hi."
    assert "functions.HassTurnOn to=assistant" in prompt_of(runtime, seen[0])


async def test_vs_code(make_ollama: Fixture, make_client: Fixture, events: Fixture) -> None:
    """It asks for the version and for each model, then talks to /v1 under the listed name."""
    client = await make_client(make_ollama(HELLO, HELLO))
    version = (await client.get("/api/version")).json()["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)
    for model in (await client.get("/api/tags")).json()["models"]:
        shown = (await client.post("/api/show", json={"model": model["model"]})).json()
        info = shown["model_info"]
        assert info["general.basename"]
        assert info[f"{info['general.architecture']}.context_length"] > 0
        assert "tools" in shown["capabilities"]
        body = {
            "model": model["model"],
            "messages": [{"role": "user", "content": "Hello!"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        response = await client.post("/v1/chat/completions", json=body)
        deltas = [chunk["choices"][0]["delta"] for chunk in events(response.text)[:-2]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "Hi, {}!"
