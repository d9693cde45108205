"""Log-probabilities are freed once they are written, however long the answer is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from engines.base import TokenLogprob
from service.answer.choice import Choice, ChoiceStep, KeptLogprobs

CONTENT = {"content": "Hi"}
Fixture = Callable[..., Any]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "wish"),
    [
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 2}),
        ("/v1/chat/completions", {"logprobs": True, "n": 3}),
        ("/v1/chat/completions", {"logprobs": True, "stop": ["nothing of it"]}),
        ("/v1/completions", {"logprobs": 2}),
    ],
)
async def test_few_are_kept_of_an_answer_of_any_length(
    make_runtime: Fixture,
    make_client: Fixture,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    wish: dict[str, Any],
    stream: bool,
) -> None:
    most_kept = 0
    forget = Choice.forget_logprobs

    def noting(self: Choice, step: ChoiceStep) -> None:
        nonlocal most_kept
        forget(self, step)
        most_kept = max(most_kept, sum(1 for _ in self.logprobs))

    monkeypatch.setattr(Choice, "forget_logprobs", noting)
    script = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
    runtime = make_runtime(script + "word " * 400 + "<|return|>")
    client = await make_client(runtime)
    body: dict[str, Any] = {"model": "gpt-oss-20b", "max_tokens": 400, "stream": stream, **wish}
    prompt = {"prompt": "Hi"}
    body |= prompt if path == "/v1/completions" else {"messages": [{"role": "user", **CONTENT}]}
    answer = await client.post(path, json=body)
    assert answer.status_code == 200
    assert 0 < most_kept < 60
    if not stream:
        choice = json.loads(answer.text)["choices"][0]["logprobs"]
        assert len(choice.get("content") or choice["tokens"]) > 300


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
