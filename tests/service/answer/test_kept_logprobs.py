"""Log-probabilities are freed once they are written, however long the answer is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest import mock

import httpx2
import pytest

from engines.base import TokenLogprob
from service.answer.choice import Choice, ChoiceStep
from service.answer.logprobs import KeptLogprobs

SCRIPT = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
    + "word " * 400
    + "<|return|>"
)
Fixture = Callable[..., Any]


async def num_kept(
    client: httpx2.AsyncClient, path: str, body: dict[str, Any], *, stream: bool
) -> int:
    """The most that is kept at once of an answer of 400 words with log-probabilities."""
    most_kept = 0
    forget = Choice.forget_logprobs

    def noting(self: Choice, step: ChoiceStep) -> None:
        nonlocal most_kept
        forget(self, step)
        most_kept = max(most_kept, sum(1 for _ in self.logprobs))

    with mock.patch.object(Choice, "forget_logprobs", noting):
        body = {"model": "gpt-oss-20b", "max_tokens": 400, "stream": stream, **body}
        answer = await client.post(path, json=body)
    assert answer.status_code == 200
    if not stream:
        choice = json.loads(answer.text)["choices"][0]["logprobs"]
        assert len(choice.get("content") or choice["tokens"]) > 300
    return most_kept


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wish", [{"top_logprobs": 2}, {"n": 3}, {"stop": ["nothing of it"]}])
async def test_few_are_kept_of_an_answer_of_any_length(
    make_runtime: Fixture, make_client: Fixture, wish: dict[str, Any], stream: bool
) -> None:
    client = await make_client(make_runtime(SCRIPT))
    body = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, **wish}
    assert 0 < await num_kept(client, "/v1/chat/completions", body, stream=stream) < 60


def test_positions_count_from_the_first_token() -> None:
    kept = KeptLogprobs()
    given = [TokenLogprob(number, -1.0) for number in range(10)]
    kept.extend(given)
    kept.forget(4)
    assert (len(kept), kept[4], kept[9]) == (10, given[4], given[9])
    kept.cut(6)
    assert (len(kept), list(kept)) == (6, given[4:6])
    kept.forget(2)
    with pytest.raises(IndexError, match="forgotten"):
        kept[3]
