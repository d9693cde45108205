"""Extensions of the playground: an answer that continues, all log-probabilities, a restart told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

import pytest

from engines.base import EngineRequest, OnEntered, TokenEvent, ignore
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]
PATH = "/v1/chat/completions"
THOUGHT = "<|channel|>analysis<|message|>A short thought.<|end|><|start|>assistant"
HELLO = THOUGHT + "<|channel|>final<|message|>Grüße, 👩‍🚀 from here!<|return|>"
STOPPED = {"stop": "from"}


def first(chunk: dict[str, Any]) -> dict[str, Any]:
    return dict(chunk["choices"][0]) if chunk["choices"] else {}


@pytest.mark.parametrize("changes", [{}, {"logprobs": True, "top_logprobs": 2}, STOPPED])
async def test_an_answer_continues_behind_any_of_its_tokens(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture, changes: dict[str, Any]
) -> None:
    client = await make_client(make_runtime(HELLO))
    body = chat_body(return_token_ids=True, **changes)
    whole = (await client.post(PATH, json=body)).json()
    ids = whole["choices"][0]["token_ids"]
    for cut in range(1, len(ids)):
        if ids[:cut][-1] == ids[-1]:
            continue
        answer = await client.post(PATH, json=body | {"continue_token_ids": ids[:cut]})
        got = answer.json()
        assert got["choices"][0]["message"] == whole["choices"][0]["message"], cut
        assert got["choices"][0]["token_ids"] == ids
        # What the client gave counts as prompt.
        assert got["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] - cut
        assert got["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"] + cut


async def test_a_continued_stream_holds_the_beginning_too(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture, events: Fixture
) -> None:
    client = await make_client(make_runtime(HELLO))
    body = chat_body(return_token_ids=True, stream=True)
    whole = events((await client.post(PATH, json=body)).text)
    ids = [id for chunk in whole[:-1] for id in first(chunk).get("token_ids", [])]
    rest = await client.post(PATH, json=body | {"continue_token_ids": ids[:-4]})
    deltas = [first(chunk).get("delta", {}) for chunk in events(rest.text)[:-1]]
    text = "".join(delta.get("content", "") for delta in deltas)
    assert text == "Grüße, 👩‍🚀 from here!"


@pytest.mark.parametrize(
    ("ids", "changes", "words"),
    [
        ([1, 200002], {}, "ends the answer"),
        ([1, 300000], {}, "outside the vocabulary"),
        ([-1], {}, "outside the vocabulary"),
        ([1] * 5000, {}, "leaves room for"),
    ],
)
async def test_what_cannot_be_continued_is_refused(
    make_runtime: Fixture,
    make_client: Fixture,
    chat_body: Fixture,
    ids: list[int],
    changes: dict[str, Any],
    words: str,
) -> None:
    client = await make_client(make_runtime(HELLO, max_model_len=2048))
    answer = await client.post(PATH, json=chat_body(continue_token_ids=ids, **changes))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "continue_token_ids"
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("step", [1, 3, 64])
async def test_all_tokens_have_log_probabilities_where_asked(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture, events: Fixture, step: int
) -> None:
    client = await make_client(make_runtime(HELLO, tokens_per_step=step))
    extra = {"logprobs": True, "top_logprobs": 2, "return_token_logprobs": True}
    body = chat_body(return_token_ids=True, **extra)
    choice = (await client.post(PATH, json=body)).json()["choices"][0]
    told = choice["token_logprobs"]
    assert [entry["id"] for entry in told] == choice["token_ids"]
    assert told[0]["token"] == "<|channel|>"
    assert {"id", "token", "logprob"} == told[0]["top_logprobs"][0].keys()
    streamed = events((await client.post(PATH, json=body | {"stream": True})).text)[:-1]
    entries = [entry for each in streamed for entry in first(each).get("token_logprobs", [])]
    assert entries == told
    # Those of a beginning that the client gave are not known.
    rest = body | {"continue_token_ids": choice["token_ids"][:5]}
    entries = (await client.post(PATH, json=rest)).json()["choices"][0]["token_logprobs"]
    assert entries == [None] * 5 + told[5:]


@pytest.mark.parametrize(
    "changes",
    [
        {"return_token_logprobs": True},
        {"return_token_logprobs": True, "logprobs": True},
        {
            "return_token_logprobs": True,
            "logprobs": True,
            "return_token_ids": True,
            "include_reasoning": False,
        },
    ],
)
async def test_log_probabilities_of_all_tokens_need_what_shows_them(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture, changes: dict[str, Any]
) -> None:
    client = await make_client(make_runtime(HELLO))
    answer = await client.post(PATH, json=chat_body(**changes))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "return_token_logprobs"


class Dying(FakeEngine):
    """Its answers outlive a death once sixteen tokens were shown."""

    async def generate(
        self, request: EngineRequest, on_entered: OnEntered = ignore
    ) -> AsyncGenerator[TokenEvent, None]:
        count = 0
        async for event in super().generate(request, on_entered):
            count += len(event.token_ids)
            yield replace(event, num_restarts=1) if count > 16 else event


async def test_a_stream_says_once_that_it_outlived_its_engine(
    make_runtime: Fixture,
    make_client: Fixture,
    chat_body: Fixture,
    events: Fixture,
    harmony_ids: Fixture,
) -> None:
    engine = Dying(FakeOptions(scripts=(harmony_ids(HELLO),), step_s=0.001))
    client = await make_client(make_runtime(engine=engine))
    text = (await client.post(PATH, json=chat_body(stream=True))).text
    assert text.count("\n: engine restarted, the answer continues\n\n") == 1
    before, after = text.split(": engine restarted")
    assert "thought" in before
    assert "here" in after
