"""A second chat format, end to end by HTTP: nothing of the service knows Harmony."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from engines.base import EngineRequest
from engines.native.grammar.compiler import Compiled, Guide, written
from engines.native.grammar.library import compiled
from engines.native.grammar.vocabulary import read_vocabulary, tokenizer_of
from profiles.errors import InvalidConstraint
from service.chat_format import ChatFormat, format_named
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.service.chatml import END, FORMAT

Fixture = Callable[..., Any]

VOCAB_SIZE = 288
ROOT = Path(__file__).parents[2]
PATH = "/v1/chat/completions"
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
CALLED = {
    "role": "assistant",
    "reasoning": "Look.",
    "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "sunny <|im_end|>"}


@pytest.fixture
def serve(make_runtime: Fixture, make_client: Fixture) -> Fixture:
    """A client of a service whose model reads and writes ChatML."""

    async def start(script: str | Callable[[EngineRequest], Sequence[int]]) -> httpx2.AsyncClient:
        ids = FORMAT.encode_marked(script) if isinstance(script, str) else ()
        options = FakeOptions(script=tuple(ids), vocab_size=VOCAB_SIZE)
        engine = FakeEngine(options, None if isinstance(script, str) else script)
        client: httpx2.AsyncClient = await make_client(make_runtime(engine=engine, format=FORMAT))
        return client

    return start


@pytest.fixture(scope="module")
def obeying(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    """A model that writes noise, of which the grammar lets through what it allows."""
    path = FORMAT.write_vocabulary(tmp_path_factory.mktemp("chatml"))
    tokenizer = tokenizer_of(read_vocabulary(path, VOCAB_SIZE))

    def script(request: EngineRequest) -> list[int]:
        assert request.grammar is not None
        matcher = compiled(tokenizer, written(request.grammar))
        guide = Guide(Compiled(matcher, 0), VOCAB_SIZE - 1, END)
        mask, noise, ids = np.empty(VOCAB_SIZE // 32, np.int32), random.Random(1), [-1]
        while ids[-1] != END:
            guide.fill(mask)
            allowed = [id for id in range(VOCAB_SIZE) if mask[id // 32] >> id % 32 & 1]
            marks = [id for id in allowed if id > 255]
            ids.append(noise.choice(marks or [id for id in allowed if 32 < id < 127] or allowed))
            guide.accept(ids[-1])
        return ids[1:]

    return script


async def test_it_renders(serve: Fixture, chat_body: Fixture) -> None:
    client = await serve("x<|im_end|>")
    body = chat_body(messages=[{"role": "user", "content": "Hi é"}, CALLED, RESULT], tools=[TOOL])
    tools = json.dumps([{"name": "weather", "parameters": CITY}])
    history = (
        f"<|im_start|>system\n# Tools\n{tools}<|im_end|>\n<|im_start|>user\nHi é<|im_end|>\n"
        "<|im_start|>assistant\n<think>Look.</think><tool_call>weather\n{}</tool_call><|im_end|>\n"
        "<|im_start|>tool\nsunny <|im_end|><|im_end|>\n"
    )
    for opens_answer, opening in ((True, "<|im_start|>assistant\n"), (False, "")):
        answer = await client.post(
            f"{PATH}/render", json=body | {"add_generation_prompt": opens_answer}
        )
        assert answer.json()["prompt"] == history + opening
    counted = (await client.post("/tokenize", json={"messages": body["messages"]})).json()
    assert counted["tokens"].count(END) == 3  # what a client spells out is no mark
    unknown = chat_body(messages=[RESULT])
    assert (await client.post(PATH, json=unknown)).json()["error"]["code"] == "unknown_tool_call"


async def test_it_parses(serve: Fixture, chat_body: Fixture, events: Fixture) -> None:
    script = '<think>Hm é.</think>Well:<tool_call>weather\n{"days": 1}</tool_call><|im_end|>'
    client = await serve(script)
    body = chat_body(tools=[TOOL], logprobs=True)
    answer = (await client.post(PATH, json=body)).json()
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning"] == "Hm é."
    assert choice["message"]["content"] == "Well:"
    [call] = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"days": 1}'}
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == [*"Well:"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == len("Hm é.") + 1
    chunks = events((await client.post(PATH, json=body | {"stream": True})).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "Hm é."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Well:"
    parts = [part["function"] for delta in deltas for part in delta.get("tool_calls", ())]
    assert "".join(part["arguments"] for part in parts) == '{"days": 1}'


async def test_stop_strings_and_raw_text_are_read_in_it(serve: Fixture, chat_body: Fixture) -> None:
    client = await serve("one two three<|im_end|>")
    answer = (await client.post(PATH, json=chat_body(stop=" three"))).json()
    assert answer["choices"][0]["message"]["content"] == "one two"
    begun = chat_body(continue_token_ids=[END])
    assert "ends the answer" in (await client.post(PATH, json=begun)).json()["error"]["message"]


async def test_an_answer_is_guided(
    serve: Fixture, obeying: Fixture, chat_body: Fixture, events: Fixture
) -> None:
    client = await serve(obeying)
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    whole = (await client.post(PATH, json=chat_body(response_format=schema))).json()
    content = json.loads(whole["choices"][0]["message"]["content"])
    assert content["city"] in ("Oslo", "Rome")
    assert isinstance(content["days"], int)
    forced = chat_body(tools=[TOOL], tool_choice="required", thinking_token_budget=4, stream=True)
    chunks = events((await client.post(PATH, json=forced)).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    parts = [part["function"] for delta in deltas for part in delta.get("tool_calls", ())]
    assert parts[0]["name"] == "weather"
    assert json.loads("".join(part["arguments"] for part in parts))["city"] in ("Oslo", "Rome")
    assert not any(delta.get("content") for delta in deltas)


async def test_a_built_in_tool_that_it_has_not_is_refused(
    serve: Fixture, chat_body: Fixture
) -> None:
    client = await serve("x<|im_end|>")
    answer = await client.post(PATH, json=chat_body(tools=[{"type": "web_search"}]))
    assert answer.json()["error"]["code"] == "unsupported_value"


def test_it_has_all_that_the_service_asks_a_format_for() -> None:
    assert isinstance(FORMAT, ChatFormat)
    assert isinstance(format_named("harmony"), ChatFormat)


@pytest.mark.heavy
def test_a_part_brings_it(tmp_path: Path) -> None:
    """A catalogue's model names the part by its folder."""
    part = tmp_path / "parts" / "chatml"
    part.mkdir(parents=True)
    for folder in (part, part.parent):
        (folder / "__init__.py").touch()
    (part / "about.py").touch()
    (part / "format.py").write_text("from tests.service.chatml import FORMAT\n")
    program = (
        "from service.chat_format import format_named; print(format_named('chatml').stop_token_ids)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{FORMAT.stop_token_ids}\n"


def test_one_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidConstraint, match=r"'chatml' is not installed \(there are: harmony"):
        format_named("chatml")
