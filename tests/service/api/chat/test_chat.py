"""POST /v1/chat/completions, not streamed: what an answer holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engines.base import EngineRequest
from service.harmony import vocabulary
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

THOUGHT = "<|channel|>analysis<|message|>Simple.<|end|><|start|>assistant"
HELLO = THOUGHT + "<|channel|>final<|message|>Hello there, friend!<|return|>"
CALL = (
    THOUGHT + '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "é"}<|call|>'
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture
def ask(make_runtime: Fixture, make_client: Fixture, chat_body: Fixture) -> Fixture:
    """Send one request to a service that runs the script; give the answer's JSON."""

    async def send(script: str, options: dict[str, Any] | None = None, **changes: Any) -> Any:
        client = await make_client(make_runtime(script, **options or {}))
        response = await client.post("/v1/chat/completions", json=chat_body(**changes))
        return response.json()

    return send


@pytest.fixture
def seen(make_client: Fixture, make_runtime: Fixture, chat_body: Fixture) -> Fixture:
    """Send one request; give what the engine was asked for."""

    async def send(**changes: Any) -> list[EngineRequest]:
        requests: list[EngineRequest] = []

        def script(request: EngineRequest) -> list[int]:
            requests.append(request)
            return [vocabulary.RETURN]

        engine = FakeEngine(FakeOptions(script=(1,), max_model_len=1000), script)
        client = await make_client(make_runtime(engine=engine))
        response = await client.post("/v1/chat/completions", json=chat_body(**changes))
        assert response.status_code == 200, response.text
        return requests

    return send


async def test_reasoning_and_content_come_apart(ask: Fixture) -> None:
    answer = await ask(HELLO)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    message = answer["choices"][0]["message"]
    assert message["content"] == "Hello there, friend!"
    assert message["reasoning"] == message["reasoning_content"] == "Simple."
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_usage_counts_every_token_and_says_which_were_reasoning(
    ask: Fixture, harmony_ids: Fixture
) -> None:
    usage = (await ask(HELLO))["usage"]
    assert usage["completion_tokens"] == len(harmony_ids(HELLO))
    reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    assert reasoning == len(vocabulary.encode_text("Simple."))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_a_repeated_prompt_reports_its_cached_tokens(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    client = await make_client(make_runtime(HELLO))
    await client.post("/v1/chat/completions", json=chat_body())
    again = (await client.post("/v1/chat/completions", json=chat_body())).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_a_call_is_returned_with_its_arguments_as_written(ask: Fixture) -> None:
    choice = (await ask(CALL, tools=[TOOL]))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    [call] = choice["message"]["tool_calls"]
    assert call["id"].startswith("call_")
    assert call["function"] == {"name": "f", "arguments": '{"a": "é"}'}


async def test_a_cut_answer_says_length_even_beside_a_call(
    ask: Fixture, harmony_ids: Fixture
) -> None:
    limit = len(harmony_ids(CALL)) - 2
    choice = (await ask(CALL, tools=[TOOL], max_completion_tokens=limit))["choices"][0]
    assert choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "length"


async def test_tool_choice_none_hides_the_tools(seen: Fixture) -> None:
    [bare] = await seen()
    [hidden] = await seen(tools=[TOOL], tool_choice="none")
    [shown] = await seen(tools=[TOOL], tool_choice="auto")
    assert hidden.prompt_token_ids == bare.prompt_token_ids
    assert len(shown.prompt_token_ids) > len(bare.prompt_token_ids)


async def test_without_parallel_calls_only_the_first_is_returned(ask: Fixture) -> None:
    head = "<|channel|>commentary to=functions.f<|message|>"
    both = f'{head}{{"a": 1}}<|end|><|start|>assistant{head}{{"a": 2}}<|call|>'
    parallel = (await ask(both, tools=[TOOL]))["choices"][0]["message"]["tool_calls"]
    single = await ask(both, tools=[TOOL], parallel_tool_calls=False)
    assert [call["function"]["arguments"] for call in parallel] == ['{"a": 1}', '{"a": 2}']
    assert single["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert len(single["choices"][0]["message"]["tool_calls"]) == 1
    assert single["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("step", [1, 3, 8])
async def test_a_stop_string_ends_visible_text_only_and_is_cut_off(
    ask: Fixture, harmony_ids: Fixture, step: int
) -> None:
    script = HELLO.replace("Simple.", "Say there.")
    answer = await ask(script, {"tokens_per_step": step}, stop=["nowhere", "re, fr"])
    choice = answer["choices"][0]
    assert choice["message"]["reasoning"] == "Say there."
    assert choice["message"]["content"] == "Hello the"
    assert choice["finish_reason"] == "stop"
    until = harmony_ids(script.partition("iend!")[0] + "iend")
    assert answer["usage"]["completion_tokens"] == len(until), "tokens after the cut do not count"


async def test_text_held_for_a_stop_string_that_never_came_is_not_lost(ask: Fixture) -> None:
    answer = await ask(HELLO, stop="friend!!")
    assert answer["choices"][0]["message"]["content"] == "Hello there, friend!"


async def test_logprobs_cover_the_content_tokens(ask: Fixture) -> None:
    choice = (await ask(HELLO, logprobs=True, top_logprobs=2))["choices"][0]
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == "Hello there, friend!"
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == b"Hello there, friend!"
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert entries[0]["top_logprobs"][1]["logprob"] == -20.0


async def test_logprobs_without_rivals(ask: Fixture) -> None:
    choice = (await ask(HELLO, logprobs=True))["choices"][0]
    assert all(entry["top_logprobs"] == [] for entry in choice["logprobs"]["content"])


async def test_n_choices_come_in_order_and_are_billed_together(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture, harmony_ids: Fixture
) -> None:
    scripts = [HELLO, HELLO.replace("friend", "stranger")]
    client = await make_client(make_runtime(*scripts))
    body = chat_body(n=2)
    answer = (await client.post("/v1/chat/completions", json=body)).json()
    texts = {choice["message"]["content"] for choice in answer["choices"]}
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert texts == {"Hello there, friend!", "Hello there, stranger!"}
    assert answer["usage"]["completion_tokens"] == sum(len(harmony_ids(s)) for s in scripts)


async def test_seeded_choices_differ_from_each_other_and_repeat(seen: Fixture) -> None:
    first, second = await seen(n=2, seed=7)
    assert (first.sampling.seed, second.sampling.seed) == (7, 8)
    assert first.request_id != second.request_id


async def test_reasoning_can_be_left_out(ask: Fixture) -> None:
    answer = await ask(HELLO, include_reasoning=False)
    message = answer["choices"][0]["message"]
    assert message["reasoning"] is None
    assert message["content"] == "Hello there, friend!"
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_token_ids_are_told_where_they_are_asked_for(
    ask: Fixture, harmony_ids: Fixture
) -> None:
    plain = await ask(HELLO)
    assert "prompt_token_ids" not in plain
    assert "token_ids" not in plain["choices"][0]
    told = await ask(HELLO, return_token_ids=True)
    assert tuple(told["choices"][0]["token_ids"]) == harmony_ids(HELLO)
    assert len(told["prompt_token_ids"]) == told["usage"]["prompt_tokens"]


async def test_token_ids_end_where_the_answer_was_cut(ask: Fixture) -> None:
    told = await ask(HELLO, {"tokens_per_step": 64}, return_token_ids=True, stop=["friend"])
    assert len(told["choices"][0]["token_ids"]) == told["usage"]["completion_tokens"]


async def test_sampling_reaches_the_engine(seen: Fixture) -> None:
    sampling = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.2,
        "seed": 3,
    }
    changes = sampling | {"logit_bias": {"17": -5}, "logprobs": True, "top_logprobs": 3}
    [request] = await seen(max_completion_tokens=9, **changes)
    for name, value in sampling.items():
        assert getattr(request.sampling, name) == value
    assert request.sampling.max_tokens == 9
    assert request.sampling.logit_bias == {17: -5}
    assert request.sampling.logprobs == 3
    assert request.stop_token_ids == vocabulary.STOP_TOKEN_IDS


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_both_names_of_the_token_limit_work(seen: Fixture, name: str) -> None:
    [request] = await seen(**{name: 5})
    assert request.sampling.max_tokens == 5


async def test_without_a_limit_the_rest_of_the_context_may_be_used(seen: Fixture) -> None:
    [request] = await seen()
    assert len(request.prompt_token_ids) + request.sampling.max_tokens == 1000


@pytest.mark.parametrize(
    ("asked", "rendered"),
    [
        (None, "medium"),
        ("none", "low"),
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("xhigh", "high"),
        ("max", "high"),
    ],
)
async def test_the_effort_reaches_the_prompt(
    seen: Fixture, asked: str | None, rendered: str
) -> None:
    [request] = await seen(reasoning_effort=asked)
    text = b"".join(map(vocabulary.decode_bytes, request.prompt_token_ids)).decode()
    assert f"Reasoning: {rendered}\n" in text
    assert "Current date: 2026-09-21\n" in text


@pytest.mark.parametrize("verbosity", [None, "low", "medium", "high"])
async def test_verbosity_is_a_line_of_the_instructions(
    seen: Fixture, verbosity: str | None
) -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    [request] = await seen(verbosity=verbosity, messages=messages)
    text = vocabulary.decode_marked(request.prompt_token_ids)
    instructions = text.split("# Instructions\n\n")[1].split("<|end|>")[0]
    lines = {"low": "\n\nAnswer briefly: ", "high": "\n\nAnswer in detail: "}
    assert instructions.startswith("Be kind." + lines.get(verbosity or "", ""))
    assert (instructions == "Be kind.") == (verbosity in (None, "medium"))


async def test_an_answer_can_be_sent_back_as_history(seen: Fixture, ask: Fixture) -> None:
    message = (await ask(CALL, tools=[TOOL]))["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "ok"}
    user = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    [request] = await seen(messages=[user, message, result], tools=[TOOL])
    text = b"".join(map(vocabulary.decode_bytes, request.prompt_token_ids)).decode()
    assert "Simple." in text, "reasoning is replayed inside a tool loop"
    assert '{"a": "é"}' in text


async def test_a_prompt_that_leaves_no_room_is_refused(ask: Fixture) -> None:
    answer = await ask(HELLO, {"max_model_len": 60})
    assert answer["error"]["code"] == "context_length_exceeded"
    assert answer["error"]["param"] == "messages"


async def test_tools_that_fill_the_context_are_named(ask: Fixture) -> None:
    tool = {"name": "f", "description": "word " * 100}
    tools = [{"type": "function", "function": {**tool, "name": f"f{n}"}} for n in range(60)]
    error = (await ask(HELLO, {"max_model_len": 500}, tools=tools))["error"]
    assert error["code"] == "context_length_exceeded"
    assert "your messages and the 60 tools resulted in" in error["message"]


async def test_a_long_prompt_is_rendered_like_a_short_one(ask: Fixture) -> None:
    messages = [{"role": "user", "content": "word " * 10_000}]
    answer = await ask(HELLO, messages=messages)
    assert answer["choices"][0]["message"]["content"] == "Hello there, friend!"
    assert answer["usage"]["prompt_tokens"] > 10_000
