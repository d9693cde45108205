"""Fields of vLLM's API: further stop tokens, and a salt for the prefix cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from service.harmony.vocabulary import RETURN, encode_text
from tests.parts.families.table import CHAT, RESPONSES, TEXT

Fixture = Callable[..., Any]

BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi " * 100}], "logprobs": True},
    TEXT: {"prompt": "Hi " * 100, "logprobs": 0},
    RESPONSES: {"input": "Hi " * 100},
}
FINAL = "<|channel|>final<|message|>"
WORD, *_ = encode_text(" world")


@pytest.fixture
def asked(make_client: Fixture, make_runtime: Fixture) -> Fixture:
    """Ask an engine that writes "Hello big world!" and gives several tokens a step."""

    async def start(path: str, num_tokens: int = 1) -> Fixture:
        script = "Hello big world!<|return|>"
        script = script if path == TEXT else FINAL + script
        client = await make_client(make_runtime(script, tokens_per_step=num_tokens))

        async def ask(**changes: Any) -> Any:
            return await client.post(path, json={"model": "gpt-oss-20b"} | BODIES[path] | changes)

        return ask

    return start


def text_of(path: str, answer: Any) -> str:
    if path == RESPONSES:
        return str(answer["output"][-1]["content"][0]["text"])
    [choice] = answer["choices"]
    return str(choice["text"] if path == TEXT else choice["message"]["content"])


@pytest.mark.parametrize("num_tokens", [1, 3])
@pytest.mark.parametrize("stop", [[], [" !"]])
@pytest.mark.parametrize("path", BODIES)
async def test_a_further_stop_token_ends_the_answer_and_is_not_shown(
    asked: Fixture, path: str, stop: list[str], num_tokens: int
) -> None:
    ask = await asked(path, num_tokens)
    changes = {"stop": stop} if stop and path != RESPONSES else {}
    answer = (await ask(stop_token_ids=[WORD, RETURN], **changes)).json()
    assert text_of(path, answer) == "Hello big"
    if path == RESPONSES:
        assert answer["usage"]["output_tokens"] == 6
        return
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "stop"
    shown = choice["logprobs"]["tokens" if path == TEXT else "content"]
    assert len(shown) == 2
    assert answer["usage"]["completion_tokens"] == (3 if path == TEXT else 6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stop_token_ids": [201_088]}, "outside the vocabulary of 201088 tokens"),
        (
            {"stop_token_ids": [WORD], "response_format": {"type": "json_object"}},
            "stop_token_ids and a guided answer cannot be combined",
        ),
    ],
)
async def test_a_stop_token_that_cannot_be_is_refused(
    asked: Fixture, changes: dict[str, Any], message: str
) -> None:
    answer = await (await asked(CHAT))(**changes)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


async def test_the_models_own_stop_tokens_may_be_named_with_a_guided_answer(
    asked: Fixture,
) -> None:
    format = {"type": "json_object"}
    answer = await (await asked(CHAT))(stop_token_ids=[RETURN], response_format=format)
    assert answer.status_code == 200


async def test_a_prefix_is_shared_under_one_salt_only(asked: Fixture) -> None:
    ask = await asked(TEXT)

    async def num_cached(**changes: Any) -> int:
        usage = (await ask(**changes)).json()["usage"]
        return int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)

    assert await num_cached(cache_salt="a") == 0
    assert await num_cached(cache_salt="b") == 0
    assert await num_cached() == 0
    assert await num_cached(cache_salt="a") > 0
    assert await num_cached() > 0


@pytest.mark.parametrize("num_tokens", [1, 3])
@pytest.mark.parametrize("path", BODIES)
async def test_the_stop_string_may_stay_in_the_text(
    asked: Fixture, path: str, num_tokens: int
) -> None:
    ask = await asked(path, num_tokens)
    changes = {"stop": ["g w"], "include_stop_str_in_output": True}
    assert text_of(path, (await ask(**changes)).json()) == "Hello big w"
    changes["include_stop_str_in_output"] = False
    assert text_of(path, (await ask(**changes)).json()) == "Hello bi"


@pytest.mark.parametrize("num_tokens", [1, 3])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"stop": ["big"]}, "big"), ({"stop_token_ids": [WORD]}, WORD), ({}, None)],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_choice_says_which_stop_ended_it(
    asked: Fixture, path: str, changes: dict[str, Any], reason: str | int | None, num_tokens: int
) -> None:
    ask = await asked(path, num_tokens)
    [choice] = (await ask(**changes)).json()["choices"]
    assert (choice["finish_reason"], choice.get("stop_reason")) == ("stop", reason)
    lines = (await ask(**changes, stream=True)).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    ends = [c for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert [end.get("stop_reason") for end in ends] == [reason]
