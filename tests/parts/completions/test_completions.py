"""POST /v1/completions: raw prompts in every form, echo, logprobs, several answers, the stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from engines.base import EngineRequest
from service.harmony.vocabulary import START, encode_text
from service.run.server import create_app
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.service.answer.test_kept_logprobs import SCRIPT, num_kept

Fixture = Callable[..., Any]

PATH = "/v1/completions"
HELLO = "<|channel|>analysis<|message|>Hm.<|end|>Grüße, 👩‍🚀!<|return|>"


def body_of(**changes: Any) -> dict[str, Any]:
    return {"model": "gpt-oss-20b", "prompt": "Say hello:", "max_tokens": 64} | changes


@pytest.mark.parametrize(
    ("prompt", "token_ids"),
    [
        ("Hi", [tuple(encode_text("Hi"))]),
        (["Hi", "Ho"], [tuple(encode_text("Hi")), tuple(encode_text("Ho"))]),
        ([1, 2, 3], [(1, 2, 3)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
        ("<|start|>user", [(START, *encode_text("user"))]),
        ("<|nobody|>", [tuple(encode_text("<|nobody|>"))]),
    ],
)
async def test_the_engine_gets_the_prompts_as_they_stand(
    make_runtime: Fixture, make_client: Fixture, prompt: Any, token_ids: list[tuple[int, ...]]
) -> None:
    seen: list[EngineRequest] = []

    def script(request: EngineRequest) -> tuple[int, ...]:
        seen.append(request)
        return (*encode_text(f" {len(request.prompt_token_ids)}"), 200002)

    client = await make_client(make_runtime(engine=FakeEngine(FakeOptions(), script)))
    response = await client.post(PATH, json=body_of(prompt=prompt, n=2, seed=7))
    assert [r.prompt_token_ids for r in seen] == [ids for ids in token_ids for _ in range(2)]
    assert [r.sampling.seed for r in seen] == [7, 8] * len(token_ids)
    assert len({r.request_id for r in seen}) == len(seen)
    answer = response.json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == [f" {len(ids)}" for ids in token_ids for _ in range(2)]
    assert answer["usage"]["prompt_tokens"] == sum(len(ids) for ids in token_ids)


async def test_the_answer_is_plain_text(make_runtime: Fixture, make_client: Fixture) -> None:
    client = await make_client(make_runtime(HELLO))
    answer = (await client.post(PATH, json=body_of())).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "text": "analysisHm.Grüße, 👩‍🚀!",
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


async def test_control_tokens_are_spelt_out_when_asked(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    client = await make_client(make_runtime(HELLO))
    answer = (await client.post(PATH, json=body_of(skip_special_tokens=False))).json()
    assert answer["choices"][0]["text"] == HELLO.removesuffix("<|return|>")


async def test_generation_ends_at_the_models_own_stop_tokens(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    """Stop tokens hold on every route (NVIDIA/TensorRT-LLM#10651)."""
    for end in ("<|return|>", "<|call|>"):
        client = await make_client(make_runtime(f"One{end}Two"))
        answer = (await client.post(PATH, json=body_of())).json()
        assert answer["choices"][0]["text"] == "One"
        assert answer["choices"][0]["finish_reason"] == "stop"


async def test_the_default_limit_is_openais(make_runtime: Fixture, make_client: Fixture) -> None:
    client = await make_client(make_runtime("on and "))
    answer = (await client.post(PATH, json=body_of(max_tokens=None))).json()
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompt", "echo"),
    [
        ("Hi<|end|>", ["Hi<|end|>"]),
        (["a", "b"], ["a", "b"]),
        ([START, *encode_text("é")], ["<|start|>é"]),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_echo_puts_the_prompt_first(
    make_runtime: Fixture,
    make_client: Fixture,
    events: Fixture,
    prompt: Any,
    echo: list[str],
    stream: bool,
) -> None:
    client = await make_client(make_runtime(" x<|return|>"))
    response = await client.post(PATH, json=body_of(prompt=prompt, echo=True, stream=stream))
    texts = [""] * len(echo)
    for item in events(response.text)[:-1] if stream else [response.json()]:
        for choice in item["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [text + " x" for text in echo]


async def test_logprobs_say_where_each_token_stands(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    client = await make_client(make_runtime("ab é🪿.<|end|>c<|return|>"))
    answer = (await client.post(PATH, json=body_of(logprobs=2))).json()
    choice = answer["choices"][0]
    text, logprobs = choice["text"], choice["logprobs"]
    assert text == "ab é🪿.c"
    assert len({len(column) for column in logprobs.values()}) == 1
    raw = b""
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert offset == len(raw.decode("utf-8", "ignore"))
        hexadecimal = token.removeprefix("bytes:").replace("\\x", "")
        raw += bytes.fromhex(hexadecimal) if token.startswith("bytes:") else token.encode()
    assert raw.decode() == text
    for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert token in top
        assert len(top) <= 3


@pytest.mark.parametrize("step", [1, 3, 8])
@pytest.mark.parametrize(
    "changes",
    [
        {"logprobs": 1},
        {"logprobs": 0, "stop": ["ße", "x"]},
        {"skip_special_tokens": False, "logprobs": 0},
        {"n": 2, "prompt": ["a", "b"]},
        {"max_tokens": 9, "logprobs": 0},
    ],
)
async def test_a_streamed_answer_adds_up_to_the_whole_one(
    make_runtime: Fixture,
    make_client: Fixture,
    events: Fixture,
    step: int,
    changes: dict[str, Any],
) -> None:
    client = await make_client(make_runtime(HELLO, tokens_per_step=step))
    whole = (await client.post(PATH, json=body_of(**changes))).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage, done = events(
        (await client.post(PATH, json=body_of(**changes, **options))).text
    )
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for expected in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == expected["index"]]
        assert "".join(choice["text"] for choice in mine) == expected["text"]
        assert mine[-1]["finish_reason"] == expected["finish_reason"]
        for name, column in (expected["logprobs"] or {}).items():
            assert [x for c in mine for x in (c["logprobs"] or {}).get(name, [])] == column


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"best_of": 3}, "best_of", "unsupported_value"),
        ({"echo": True, "logprobs": 1, "stream": True}, "echo", "unsupported_value"),
        ({"prompt": ""}, "prompt", "invalid_request"),
        ({"prompt": ["a", ""]}, "prompt[1]", "invalid_request"),
        ({"prompt": [[1], [201_088]]}, "prompt[1][0]", "invalid_request"),
        ({"prompt": [-1]}, "prompt[0]", "invalid_request"),
        ({"prompt": [10**18]}, "prompt[0]", "invalid_request"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": [[]]}, "prompt[0]", "invalid_value"),
        ({"prompt": [1, "a"]}, "prompt[1]", "invalid_value"),
        ({"prompt": None}, "prompt", "invalid_value"),
        ({"prompt": ["a"] * 1000, "n": 2}, "n", "invalid_request"),
        ({"prompt": "a " * 300, "max_tokens": 10}, "prompt", "context_length_exceeded"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    make_runtime: Fixture, make_client: Fixture, changes: dict[str, Any], param: str, code: str
) -> None:
    client = await make_client(make_runtime(HELLO, max_model_len=256))
    response = await client.post(PATH, json=body_of(**changes))
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize("changes", [{"stream": True}, {}, {"n": 2, "prompt": ["a", "b"]}])
async def test_a_client_that_leaves_frees_its_sequences(
    make_runtime: Fixture, changes: dict[str, Any]
) -> None:
    engine = FakeEngine(FakeOptions(script=(24912,), step_s=0.001))
    await engine.start()
    runtime = make_runtime(engine=engine)
    content = json.dumps(body_of(max_tokens=100_000, **changes)).encode()
    left = asyncio.Event()
    messages = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": PATH, "raw_path": PATH.encode()}
    scope |= {"query_string": b"", "headers": [(b"content-type", b"application/json")]}
    task = asyncio.create_task(create_app(runtime)(scope, receive, send))
    async with asyncio.timeout(60):
        while not (await engine.stats()).num_running:
            await asyncio.sleep(0)
        left.set()
        await task
    assert (await engine.stats()).num_running == 0
    await engine.stop()


async def test_an_echo_is_repeated_up_to_a_bound(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    client = await make_client(make_runtime(HELLO))
    body = body_of(prompt="word " * 40_000, n=128, echo=True)
    error = (await client.post(PATH, json=body)).json()["error"]
    assert (error["param"], error["type"]) == ("echo", "invalid_request_error")
    assert "25600000 characters" in error["message"]


async def test_a_request_of_a_thousand_answers_is_served_by_an_engine_of_four_places(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    client = await make_client(make_runtime("Hi<|return|>", max_num_seqs=4, step_s=0.001))
    body = {"model": "gpt-oss-20b", "prompt": ["a"] * 8, "n": 128, "max_tokens": 2}
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200
    assert [choice["index"] for choice in answer.json()["choices"]] == list(range(1024))


@pytest.mark.parametrize("stream", [True, False])
async def test_few_log_probabilities_are_kept_of_an_answer_of_any_length(
    make_runtime: Fixture, make_client: Fixture, stream: bool
) -> None:
    client = await make_client(make_runtime(SCRIPT))
    assert 0 < await num_kept(client, PATH, {"prompt": "Hi", "logprobs": 2}, stream=stream) < 60


async def test_a_prompt_is_rendered_as_vllm_does(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    client = await make_client(make_runtime(SCRIPT))
    prompts = {"model": "gpt-oss-20b", "prompt": ["One", "Two"]}
    rendered = (await client.post(f"{PATH}/render", json=prompts)).json()
    assert rendered == [{"token_ids": encode_text("One")}, {"token_ids": encode_text("Two")}]
