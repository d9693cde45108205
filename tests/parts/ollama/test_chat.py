"""POST /api/chat and /api/generate: streams of lines, thinking, tools, options, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from engines.base import EngineRequest
from engines.errors import EngineDead
from parts.ollama.answer import AnswerShape, LineStream, OllamaLines
from service.answer.generation import Generation
from service.harmony.vocabulary import encode_text
from service.http.failures import ended_by
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

HELLO = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
    "Hi, {}!<|return|>"
)
CALL = (
    "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.weather <|constrain|>json<|message|>{"city": "Ghent", "days": 2}<|call|>'
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}


def body_of(**changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello!"}]
    return {"model": "gpt-oss:20b", "messages": messages} | changes


def heard() -> tuple[FakeEngine, list[EngineRequest]]:
    """An engine that keeps what it is asked."""
    seen: list[EngineRequest] = []

    def script(request: EngineRequest) -> tuple[int, ...]:
        seen.append(request)
        return (200005, *encode_text("final"), 200008, *encode_text("Hi."), 200002)

    return FakeEngine(FakeOptions(), script), seen


def prompt_of(runtime: Any, request: EngineRequest) -> str:
    return str(runtime.format.decode_marked(request.prompt_token_ids))


async def test_a_stream_is_lines_that_add_up_to_the_whole_answer(
    make_ollama: Fixture, make_client: Fixture, lines: Fixture
) -> None:
    client = await make_client(make_ollama(HELLO, HELLO))
    response = await client.post("/api/chat", json=body_of())
    assert response.headers["content-type"] == "application/x-ndjson"
    pieces = lines(response.text)
    assert {piece["model"] for piece in pieces} == {"gpt-oss:20b"}
    assert [piece["done"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    whole = (await client.post("/api/chat", json=body_of(stream=False))).json()
    for name in ("content", "thinking"):
        text = "".join(piece["message"].get(name, "") for piece in pieces)
        assert text == whole["message"][name]
    assert whole["message"] == {"role": "assistant", "content": "Hi, {}!", "thinking": "Hm."}
    for last in (pieces[-1], whole):
        assert last["done_reason"] == "stop"
        assert last["prompt_eval_count"] > last["eval_count"] > 0
        spent = last["load_duration"] + last["prompt_eval_duration"] + last["eval_duration"]
        assert 0 < spent <= last["total_duration"] + 3
    assert pieces[-1]["eval_count"] == whole["eval_count"]


async def test_a_call_comes_whole_with_its_arguments_as_an_object(
    make_ollama: Fixture, make_client: Fixture, lines: Fixture
) -> None:
    client = await make_client(make_ollama(CALL, CALL))
    body = body_of(tools=[WEATHER])
    pieces = lines((await client.post("/api/chat", json=body)).text)
    called = [
        piece["message"]["tool_calls"] for piece in pieces if "tool_calls" in piece["message"]
    ]
    whole = (await client.post("/api/chat", json=body | {"stream": False})).json()
    arguments = {"city": "Ghent", "days": 2}
    for calls in (*called, whole["message"]["tool_calls"]):
        [call] = calls
        assert call["function"] == {"index": 0, "name": "weather", "arguments": arguments}
        assert call["id"]
    assert len(called) == 1
    assert pieces[-1]["done_reason"] == whole["done_reason"] == "stop"


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ({}, {}),  # by order
        ({}, {"tool_name": "weather"}),
        ({"id": "abc"}, {"tool_call_id": "abc"}),
    ],
)
async def test_a_result_answers_its_call(
    make_ollama: Fixture, make_client: Fixture, call: dict[str, str], result: dict[str, str]
) -> None:
    engine, seen = heard()
    runtime = make_ollama(engine=engine)
    client = await make_client(runtime)
    other = {"function": {"name": "time", "arguments": {}}}
    asked = {**call, "function": {"name": "weather", "arguments": {"city": "Ghent"}}}
    calls = [asked, other] if not result else [other, asked]
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "thinking": "Look.", "tool_calls": calls},
        {"role": "tool", "content": "Rain.", **result},
    ]
    response = await client.post("/api/chat", json=body_of(messages=messages, tools=[WEATHER]))
    assert response.status_code == 200
    prompt = prompt_of(runtime, seen[0])
    assert '{"city":"Ghent"}' in prompt
    assert "functions.weather to=assistant<|channel|>commentary<|message|>Rain." in prompt


async def test_a_result_without_a_call_is_refused(
    make_ollama: Fixture, make_client: Fixture
) -> None:
    client = await make_client(make_ollama(HELLO))
    messages = [{"role": "tool", "content": "Rain."}]
    response = await client.post("/api/chat", json=body_of(messages=messages))
    assert response.status_code == 400
    assert "messages[0]" in response.json()["error"]


@pytest.mark.parametrize(
    ("think", "effort", "is_shown"),
    [(None, "medium", True), (True, "medium", True), (False, "low", False), ("high", "high", True)],
)
async def test_think_is_the_effort(
    make_ollama: Fixture, make_client: Fixture, think: Any, effort: str, is_shown: bool
) -> None:
    runtime = make_ollama(HELLO)
    client = await make_client(runtime)
    answer = (await client.post("/api/chat", json=body_of(think=think, stream=False))).json()
    assert ("thinking" in answer["message"]) is is_shown
    engine, seen = heard()
    client = await make_client(make_ollama(engine=engine))
    await client.post("/api/chat", json=body_of(think=think))
    assert f"Reasoning: {effort}" in prompt_of(runtime, seen[0])


async def test_options_reach_the_engine(make_ollama: Fixture, make_client: Fixture) -> None:
    engine, seen = heard()
    client = await make_client(make_ollama(engine=engine))
    options = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "seed": 7,
        "num_predict": 9,
        "repeat_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "num_gpu": 99,
        "mirostat": 0,
    }
    await client.post("/api/chat", json=body_of(options=options, keep_alive="5m"))
    sampling = seen[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 40)
    assert (sampling.min_p, sampling.seed, sampling.max_tokens) == (0.1, 7, 9)
    assert sampling.repetition_penalty == 1.2
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.3, 0.4)


async def test_num_ctx_bounds_prompt_and_answer(make_ollama: Fixture, make_client: Fixture) -> None:
    engine, seen = heard()
    client = await make_client(make_ollama(engine=engine))
    await client.post("/api/chat", json=body_of(options={"num_ctx": 200}))
    assert len(seen[0].prompt_token_ids) + seen[0].sampling.max_tokens == 200
    await client.post("/api/chat", json=body_of(options={"num_ctx": 1 << 30, "num_predict": -1}))
    most = engine.info.max_model_len
    assert len(seen[1].prompt_token_ids) + seen[1].sampling.max_tokens == most
    response = await client.post("/api/chat", json=body_of(options={"num_ctx": 20}))
    assert response.status_code == 400
    assert "options.num_ctx is 20" in response.json()["error"]


@pytest.mark.parametrize("format", ["json", {"type": "object"}])
async def test_a_format_is_enforced(
    make_ollama: Fixture, make_client: Fixture, format: Any
) -> None:
    engine, seen = heard()
    client = await make_client(make_ollama(engine=engine))
    await client.post("/api/chat", json=body_of(format=""))
    await client.post("/api/chat", json=body_of(format=format))
    assert [request.grammar is not None for request in seen] == [False, True]


async def test_stop_and_logprobs(make_ollama: Fixture, make_client: Fixture) -> None:
    client = await make_client(make_ollama(HELLO))
    body = body_of(options={"stop": [","]}, logprobs=True, top_logprobs=2, stream=False)
    answer = (await client.post("/api/chat", json=body)).json()
    assert answer["message"]["content"] == "Hi"
    assert [entry["token"] for entry in answer["logprobs"]][-1:] == ["Hi"]
    assert len(answer["logprobs"][0]["top_logprobs"]) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": {"mirostat": 1}}, "options.mirostat"),
        ({"options": {"typical_p": 0.5}}, "options.typical_p"),
        ({"options": {"repeat_last_n": 64}}, "options.repeat_last_n"),
        ({"options": {"heat": 1}}, "options.heat"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"messages": [], "keep_alive": 0}, "keep_alive 0"),
        ({"messages": [], "keep_alive": "0s"}, "keep_alive 0"),
        ({"top_logprobs": 2}, "logprobs: true"),
        ({"think": "hard"}, "think"),
        (
            {"messages": [{"role": "user", "content": "?", "images": ["aGk="]}]},
            "messages[0].images",
        ),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"color": "red"}, "color"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(
    make_ollama: Fixture, make_client: Fixture, changes: dict[str, Any], words: str
) -> None:
    client = await make_client(make_ollama(HELLO))
    response = await client.post("/api/chat", json=body_of(**changes))
    assert response.status_code == 400
    assert words in response.json()["error"]


async def test_a_picture_from_a_tool_is_a_line(make_ollama: Fixture, make_client: Fixture) -> None:
    engine, seen = heard()
    runtime = make_ollama(engine=engine)
    client = await make_client(runtime)
    calls = [{"function": {"name": "look", "arguments": {}}}]
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "content": "Here:", "images": ["aGk="]},
        {"role": "user", "content": "", "images": ["aGk="]},
    ]
    assert (await client.post("/api/chat", json=body_of(messages=messages))).status_code == 200
    assert prompt_of(runtime, seen[0]).count("this model reads text only") == 2


async def test_generate_answers_a_prompt(
    make_ollama: Fixture, make_client: Fixture, lines: Fixture
) -> None:
    client = await make_client(make_ollama(HELLO, HELLO))
    body = {"model": "gpt-oss-20b:latest", "prompt": "Hello!", "system": "Be brief."}
    pieces = lines((await client.post("/api/generate", json=body)).text)
    assert "".join(piece["response"] for piece in pieces) == "Hi, {}!"
    assert "".join(piece.get("thinking", "") for piece in pieces) == "Hm."
    whole = (await client.post("/api/generate", json=body | {"stream": False})).json()
    assert (whole["response"], whole["thinking"], whole["done"]) == ("Hi, {}!", "Hm.", True)


async def test_generate_continues_a_raw_prompt(make_ollama: Fixture, make_client: Fixture) -> None:
    engine, seen = heard()
    client = await make_client(make_ollama(engine=engine))
    body = {"model": "gpt-oss-20b", "prompt": "Once<|end|>", "raw": True, "stream": False}
    answer = (await client.post("/api/generate", json=body)).json()
    assert seen[0].prompt_token_ids == (*encode_text("Once"), 200007)
    assert answer["response"] == "finalHi."


@pytest.mark.parametrize("field", ["suffix", "template", "context", "images"])
async def test_generate_refuses_what_gpt_oss_cannot(
    make_ollama: Fixture, make_client: Fixture, field: str
) -> None:
    client = await make_client(make_ollama(HELLO))
    value: Any = [1] if field in ("context", "images") else "x"
    body = {"model": "gpt-oss-20b", "prompt": "Hi"}
    response = await client.post("/api/generate", json=body | {field: value})
    assert response.status_code == 400
    assert field in response.json()["error"]
    empty: Any = [] if field in ("context", "images") else ""
    response = await client.post("/api/generate", json=body | {field: empty})
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("path", "field"), [("/api/chat", "messages"), ("/api/generate", "prompt")]
)
async def test_nothing_to_answer_loads_the_model(
    make_ollama: Fixture, make_client: Fixture, path: str, field: str
) -> None:
    client = await make_client(make_ollama(HELLO))
    for body in ({}, {field: [] if field == "messages" else ""}):
        answer = (await client.post(path, json={"model": "gpt-oss-20b", **body})).json()
        assert (answer["done"], answer["done_reason"]) == (True, "load")


async def test_a_body_is_json_whatever_its_type(make_ollama: Fixture, make_client: Fixture) -> None:
    """As Ollama's own examples for curl send it."""
    client = await make_client(make_ollama(HELLO))
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    body = json.dumps(body_of(stream=False))
    response = await client.post("/api/chat", content=body, headers=headers)
    assert response.json()["message"]["content"] == "Hi, {}!"


async def test_what_comes_between_the_pieces_is_a_piece(
    make_ollama: Fixture, make_client: Fixture, lines: Fixture
) -> None:
    """The clients parse every line: no comment, no empty line, and an error by its one name."""
    runtime = make_ollama(HELLO)
    shape = AnswerShape(True, "gpt-oss-20b", runtime.clock, runtime.new_id)
    client = await make_client(runtime)
    plan = await _plan(client, runtime)
    encoder = OllamaLines(Generation(runtime.engine, plan), shape)
    [silent] = lines(encoder.keep_alive.decode())
    assert (silent["message"]["content"], silent["done"]) == ("", False)
    [failed] = lines(encoder.error(ended_by(EngineDead("the engine died"))).decode())
    assert failed == {"error": "the engine died"}
    assert LineStream.restarted == b""


async def _plan(client: Any, runtime: Any) -> Any:
    plans: list[Any] = []
    runtime.metrics.observe = lambda generation: plans.append(generation.plan)
    await client.post("/api/chat", json=body_of())
    return plans[0]
