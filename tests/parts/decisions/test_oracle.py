"""The probabilities are the model's: nano beside transformers, and beside prompt_logprobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from math import exp
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
import torch

from engines.base import EngineRequest, OnEntered, SamplingParams, ignore
from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from engines.prompt_logprobs import packed_in, unpacked
from service.harmony.vocabulary import encode_text

pytestmark = [pytest.mark.heavy, pytest.mark.asyncio(loop_scope="module")]

TEXT = "Our checkout has failed since Monday, and every customer sees an error page."
QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "instructions": "The writer is angry.", "name": "angry"},
    {
        "type": "choice",
        "instructions": "Which team?",
        "choices": [
            {"value": "billing"},
            {"value": "web", "description": "pages"},
            {"value": True},
        ],
    },
    {
        "type": "choice",
        "instructions": "Which?",
        "choices": [{"value": f"n{i}"} for i in range(40)],
    },
    {"type": "score", "instructions": "How bad?", "levels": [{"label": f"{i}"} for i in range(10)]},
]
CODES = [["yes", "no"], ["A", "B", "C"], [str(i) for i in range(1, 41)], [*"0123456789"]]


class Kept(NativeEngine):
    """Keeps what it was asked."""

    asked: list[EngineRequest]

    def generate(self, request: EngineRequest, on_entered: OnEntered = ignore) -> Any:
        self.asked.append(request)
        return super().generate(request, on_entered)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(
    nano_checkpoint: Path, vocabulary_path: Path, one_thread: None
) -> AsyncIterator[Kept]:
    engine = Kept(NativeConfig(nano_checkpoint, vocabulary_path=vocabulary_path))
    engine.asked = []
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
def decide(make_runtime: Any, engine: Kept) -> Callable[..., Any]:
    """An answer of the route, and the prompts of its questions."""
    from service.run.server import create_app

    async def send(**changes: Any) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
        app = create_app(make_runtime(engine=engine))
        engine.asked.clear()
        body = {"model": "gpt-oss-20b", "input": TEXT, "questions": QUESTIONS} | changes
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
            answer = await client.post("/v1/decisions", json=body)
        assert answer.status_code == 200, answer.text
        prompts: dict[int, tuple[int, ...]] = {}  # of each question's first request
        for request in engine.asked:
            prompts.setdefault(int(request.request_id.split("-")[2]), request.prompt_token_ids)
        return answer.json(), [prompts[number] for number in sorted(prompts)]

    return send


def probabilities(answer: dict[str, Any]) -> list[float]:
    if answer["type"] == "predicate":
        return [answer["probability"], 1 - answer["probability"]]
    return [each["probability"] for each in answer["probabilities"]]


async def test_they_are_those_of_transformers(decide: Any, nano_checkpoint: Path) -> None:
    import transformers

    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        nano_checkpoint, dtype=torch.float32
    ).eval()
    answer, prompts = await decide()
    for asked, prompt, codes in zip(answer["answers"], prompts, CODES, strict=True):
        with torch.inference_mode():
            logits = oracle(torch.tensor([prompt])).logits[0, -1].double()
        ids = [encode_text(code)[0] for code in codes]
        expected = torch.softmax(logits[ids], 0)
        torch.testing.assert_close(
            torch.tensor(probabilities(asked), dtype=torch.float64), expected, atol=2e-5, rtol=1e-3
        )
        mass = float(torch.softmax(logits, 0)[ids].sum())
        assert asked["label_mass"] == pytest.approx(mass, rel=1e-3)


async def test_they_are_those_of_prompt_logprobs(decide: Any, engine: Kept) -> None:
    answer, prompts = await decide()
    for number, (asked, prompt, codes) in enumerate(
        zip(answer["answers"], prompts, CODES, strict=True)
    ):
        weights = []
        for code in codes[:6]:
            ids = (*prompt, encode_text(code)[0])
            request = EngineRequest(
                f"{number}-{code}", ids, SamplingParams(max_tokens=1, prompt_logprobs=0)
            )
            async with aclosing(engine.generate(request)) as events:
                [event] = [event async for event in events]
            *_, last = unpacked(packed_in(event) or (), ids)
            weights.append(exp(last.logprob))
        found = [each * asked["label_mass"] for each in probabilities(asked)[:6]]
        assert found == pytest.approx(weights, rel=1e-4)


async def test_a_repeated_request_has_the_same_numbers(decide: Any) -> None:
    """To the last bits: which steps a CPU does together changes those."""
    first, _ = await decide()
    again, _ = await decide()
    for one, other in zip(first["answers"], again["answers"], strict=True):
        assert probabilities(other) == pytest.approx(probabilities(one), rel=1e-4)


async def test_thoughts_come_before_each_answer(decide: Any) -> None:
    answer, _ = await decide(reasoning={"effort": "low"}, questions=QUESTIONS[:2])
    assert [each["type"] for each in answer["answers"]] == ["predicate", "choice"]
    assert answer["usage"]["output_tokens"] > 2
