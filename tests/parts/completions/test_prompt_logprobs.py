"""Log-probabilities of prompts: `echo` with `logprobs`, and `prompt_logprobs` as vLLM has it.

The scripted engine gives each prompt token -1, its successors in the vocabulary -2, -3, ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engines.base import Capabilities
from service.harmony.vocabulary import decode_marked, encode_marked

Fixture = Callable[..., Any]

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = "<|start|>hé🪿 <|end|>!"
IDS = encode_marked(PROMPT)
HI = {"model": "gpt-oss-20b", "messages": [{"role": "user", "content": "Hi"}]}


def body_of(**changes: Any) -> dict[str, Any]:
    return {"model": "gpt-oss-20b", "prompt": PROMPT, "max_tokens": 4} | changes


@pytest.fixture
async def client(make_runtime: Fixture, make_client: Fixture) -> Any:
    return await make_client(make_runtime("Hi<|end|><|return|>"))


@pytest.mark.parametrize("prompt", [PROMPT, IDS])
async def test_an_echo_has_an_entry_for_each_token(client: Any, prompt: Any) -> None:
    body = body_of(prompt=prompt, echo=True, logprobs=2)
    (choice,) = (await client.post(TEXT, json=body)).json()["choices"]
    assert choice["text"] == PROMPT + "Hi"
    assert "prompt_logprobs" not in choice
    columns = choice["logprobs"]
    num_prompt, num_answer = len(IDS), 3  # "Hi", and two control tokens that the text lacks
    assert {len(column) for column in columns.values()} == {num_prompt + num_answer}
    assert columns["token_logprobs"][:num_prompt] == [None, *[-1.0] * (num_prompt - 1)]
    assert columns["top_logprobs"][0] is None
    assert {len(top) for top in columns["top_logprobs"][1:num_prompt]} == {2}
    assert columns["tokens"][0] == "<|start|>"
    assert columns["tokens"][num_prompt:] == ["Hi", "<|end|>", "<|return|>"]
    offsets = columns["text_offset"]
    assert offsets == sorted(offsets)
    assert offsets[num_prompt] == len(PROMPT)


async def test_several_prompts_and_choices_have_each_their_own(client: Any) -> None:
    body = body_of(prompt=["a b", "c d e"], n=2, echo=True, logprobs=0)
    choices = (await client.post(TEXT, json=body)).json()["choices"]
    tokens = [choice["logprobs"]["tokens"][:-3] for choice in choices]
    assert tokens == [["a", " b"]] * 2 + [["c", " d", " e"]] * 2


@pytest.mark.parametrize("num_top", [0, 2])
async def test_prompt_logprobs_are_in_vllms_shape(client: Any, num_top: int) -> None:
    body = body_of(prompt_logprobs=num_top)
    (choice,) = (await client.post(TEXT, json=body)).json()["choices"]
    assert choice["text"] == "Hi"
    assert choice["logprobs"] is None
    first, *others = choice["prompt_logprobs"]
    assert first is None
    for token_id, place in zip(IDS[1:], others, strict=True):
        assert len(place) == max(num_top, 1)
        assert next(iter(place)) == str(token_id)
        assert place[str(token_id)] == {
            "logprob": -1.0,
            "rank": 1,
            "decoded_token": decode_marked([token_id]),
        }


async def test_a_conversation_has_them_too(client: Any) -> None:
    answer = (await client.post(CHAT, json=HI | {"prompt_logprobs": 1})).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in (await client.post(CHAT, json=HI)).json()


async def test_both_are_given_each_with_its_own_number(client: Any) -> None:
    body = body_of(prompt_logprobs=3, echo=True, logprobs=1)
    (choice,) = (await client.post(TEXT, json=body)).json()["choices"]
    assert {len(place) for place in choice["prompt_logprobs"][1:]} == {3}
    assert {len(top) for top in choice["logprobs"]["top_logprobs"][1 : len(IDS)]} == {1}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, body_of(prompt_logprobs=1, stream=True), "prompt_logprobs"),
        (CHAT, HI | {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (TEXT, body_of(prompt_logprobs=21), "prompt_logprobs"),
        (TEXT, body_of(prompt_logprobs=-1), "prompt_logprobs"),
        # 20,000 tokens, 13 times, each with 2: more than an answer may have.
        (TEXT, body_of(prompt=[[7] * 20_000] * 13, echo=True, logprobs=1), "echo"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    client: Any, path: str, body: Any, param: str
) -> None:
    response = await client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("changes", "param"),
    [({"echo": True, "logprobs": 1}, "echo"), ({"prompt_logprobs": 1}, "prompt_logprobs")],
)
async def test_an_engine_without_them_is_not_asked(
    make_runtime: Fixture, make_client: Fixture, changes: dict[str, Any], param: str
) -> None:
    lacking = Capabilities(frozenset({"prompt_logprobs"}))
    client = await make_client(make_runtime("Hi<|return|>", capabilities=lacking))
    error = (await client.post(TEXT, json=body_of(**changes))).json()["error"]
    assert (error["param"], error["code"]) == (param, "not_supported")
