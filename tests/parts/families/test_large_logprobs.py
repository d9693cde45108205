"""A whole answer with log-probabilities of thousands of tokens: as published, in short turns."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from parts.completions.schema import Completion
from parts.responses.answer.document import decode, encode
from service.api.chat.answer import ChatCompletion
from tests.calls import counted

NUM_TOKENS, NUM_RIVALS = 800, 20
MOST_CALLS = 15_000  # of a turn; some 90 are made for each token
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 20}
RESPONSES = {
    "input": "Hi",
    "include": ["message.output_text.logprobs"],
    "top_logprobs": NUM_RIVALS,
    "max_output_tokens": NUM_TOKENS,
}


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The calls that each turn of the event loop makes."""
    made: list[int] = []
    run = asyncio.Handle._run

    def noted(handle: asyncio.Handle) -> None:
        with counted() as calls:
            run(handle)
        made.append(calls.number)

    monkeypatch.setattr(asyncio.Handle, "_run", noted)
    return made


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/v1/chat/completions", CHAT | {"max_tokens": NUM_TOKENS}, ChatCompletion),
        (
            "/v1/completions",
            {"prompt": "Hi", "logprobs": NUM_RIVALS, "max_tokens": NUM_TOKENS},
            Completion,
        ),
        ("/v1/responses", RESPONSES, None),
    ],
)
async def test_the_whole_answer_is_not_written_in_one_turn(
    make_client: Any,
    make_runtime: Any,
    turns: list[int],
    path: str,
    body: dict[str, Any],
    model: Any,
) -> None:
    runtime = make_runtime(
        "<|channel|>final<|message|>" + "Grüße, \U0001f600\n" * 999, tokens_per_step=50
    )
    client = await make_client(runtime)
    await client.post(path, json={"model": "gpt-oss-20b"} | body)  # what is made once
    turns.clear()
    asking = asyncio.create_task(client.post(path, json={"model": "gpt-oss-20b"} | body))
    content = (await asking).content
    assert max(turns) < MOST_CALLS
    assert content.count(b'"logprob') > NUM_TOKENS or b"token_logprobs" in content
    if model is not None:
        assert model.model_validate_json(content).model_dump_json().encode() == content
    assert msgspec.json.encode(msgspec.json.decode(content)) == content


def test_a_stored_answer_is_read_without_them() -> None:
    entry = b'{"token":"a","logprob":-1.5,"bytes":[97],"top_logprobs":[]}'
    part = b'{"type":"output_text","text":"a","annotations":[],"logprobs":[%b,%b]}' % (entry, entry)
    item = b'{"id":"msg_1","type":"message","content":[%b]}' % part
    stored = b'{"id":"resp_1","output":[%b,{"type":"function_call"}],"usage":null}' % item
    document = decode(stored)
    assert document["output"][0]["content"][0]["text"] == "a"
    assert isinstance(document["output"][0]["content"][0]["logprobs"], msgspec.Raw)
    assert encode(document) == stored
