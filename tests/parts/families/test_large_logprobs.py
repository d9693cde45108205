"""A whole answer with log-probabilities of thousands of tokens: as published, in short turns."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from parts.completions.schema import Completion
from parts.responses.answer.document import decode, encode
from service.api.chat.answer import ChatCompletion

NUM_TOKENS, NUM_RIVALS = 2_500, 20
MAX_TURN_S = 0.05  # of CPU: a sixth of what it was
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 20}
RESPONSES = {
    "input": "Hi",
    "include": ["message.output_text.logprobs"],
    "top_logprobs": NUM_RIVALS,
    "max_output_tokens": NUM_TOKENS,
}


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The CPU seconds of each turn of the event loop, without the garbage of other tests."""
    spent: list[float] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began_s = time.thread_time()
        run(handle)
        spent.append(time.thread_time() - began_s)

    gc.disable()
    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    yield spent
    gc.enable()


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
    turns: list[float],
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
    assert max(turns) < MAX_TURN_S
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
