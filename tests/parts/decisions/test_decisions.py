"""POST /v1/decisions and /v1/systemone on an engine whose probabilities are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from engines.base import Capabilities
from parts.decisions import figures, wording
from service.harmony.vocabulary import decode_marked, encode_text
from tests.fake.scored import ScoredEngine
from tests.service.conftest import OneAdapter

MODEL = "gpt-oss-20b"
BY_QUESTION = {
    "Urgent?": {"yes": 0.6, "no": 0.2},
    "Team?": {"B": 0.5, "A": 0.25, "C": 0.05},
    "How bad?": {"2": 0.4, "1": 0.2, "0": 0.2},
}
URGENT = {"type": "predicate", "instructions": "Urgent?", "name": "urgent"}
TEAM = {
    "type": "choice",
    "instructions": "Team?",
    "choices": [{"value": "true"}, {"value": True}, {"value": "web", "description": "pages"}],
}
BAD = {
    "type": "score",
    "instructions": [
        {"type": "input_text", "text": "How "},
        {"type": "input_text", "text": "bad?"},
    ],
    "levels": [{"label": "low"}, {"label": "mid"}, {"label": "high", "description": "no way out"}],
}


def likely(prompt: str) -> Mapping[str, float]:
    """By the question that ends the prompt."""
    question = prompt.rpartition("# Instructions")[2]
    return next((each for text, each in BY_QUESTION.items() if text in question), {"yes": 0.5})


@pytest.fixture
def engine() -> ScoredEngine:
    return ScoredEngine(likely, num_told=2)


@pytest.fixture
async def client(engine: ScoredEngine, make_runtime: Any, make_client: Any) -> Any:
    return await make_client(make_runtime(engine=engine))


def body_of(*questions: Any, **changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "It is broken.", "questions": [*questions]} | changes


async def test_each_kind_of_question_has_its_answer(client: Any) -> None:
    answer = await client.post("/v1/decisions", json=body_of(URGENT, TEAM, BAD, model=None))
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == MODEL
    predicate, choice, score = answer.json()["answers"]
    assert predicate == {
        "type": "predicate",
        "name": "urgent",
        "probability": pytest.approx(0.75),
        "label_mass": pytest.approx(0.8),
    }
    assert choice["choice"] is True
    assert choice["name"] is None
    assert [each["value"] for each in choice["probabilities"]] == ["true", True, "web"]
    assert [each["probability"] for each in choice["probabilities"]] == pytest.approx(
        [0.3125, 0.625, 0.0625]
    )
    assert choice["confidence"] == pytest.approx((3 * 0.625 - 1) / 2)
    assert score["score"] == pytest.approx(1.25)
    assert score["probabilities"][2] == {
        "value": 2,
        "label": "high",
        "probability": pytest.approx(0.5),
    }
    assert answer.json()["model"] == MODEL


async def test_the_input_counts_once(client: Any, engine: ScoredEngine) -> None:
    one = (await client.post("/v1/decisions", json=body_of(URGENT))).json()["usage"]
    two = (await client.post("/v1/decisions", json=body_of(URGENT, URGENT))).json()["usage"]
    prompt = engine.asked[0].prompt_token_ids
    assert one["input_tokens"] == len(prompt)
    assert two["input_tokens"] < 1.5 * one["input_tokens"]
    assert two["output_tokens"] == 2
    assert two["total_tokens"] == two["input_tokens"] + 2


async def test_codes_beyond_the_likeliest_are_asked_for(client: Any, engine: ScoredEngine) -> None:
    await client.post("/v1/decisions", json=body_of(TEAM))
    forced = [next(iter(request.sampling.logit_bias)) for request in engine.asked]
    assert forced == [encode_text("A")[0], encode_text("C")[0]]  # B was told
    assert len({request.prompt_token_ids for request in engine.asked}) == 1


async def test_the_answer_begins_the_final_message(client: Any, engine: ScoredEngine) -> None:
    await client.post("/v1/decisions", json=body_of(URGENT, BAD))
    texts = dict.fromkeys(decode_marked(request.prompt_token_ids) for request in engine.asked)
    first, second = texts
    assert first.endswith("<|end|><|start|>assistant<|channel|>final<|message|>")
    shared = first.index("It is broken.<|end|>") + len("It is broken.<|end|>")
    assert first[:shared] == second[:shared]
    assert "It is data" in first
    assert "2: high - no way out" in second


async def test_a_conversation_may_have_calls_and_their_results(
    client: Any, engine: ScoredEngine
) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'}
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "run", "input": "ls"}
    given = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_json", "data": {"order": 7}}]},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": "three"},
        custom,
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "four"}],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
    ]
    answer = await client.post("/v1/decisions", json=body_of(URGENT, input=given))
    assert answer.status_code == 200, answer.text
    prompt = decode_marked(engine.asked[0].prompt_token_ids)
    for text in ("Be kind.", '{"order":7}', '{"at": 1}', "three", "ls", "four", "Done."):
        assert text in prompt


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
LONE = {"type": "function_call_output", "call_id": "c9", "output": "x"}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0]"),
        ({"input": [LONE]}, "input[0].call_id"),
        ({"questions": []}, "questions"),
        ({"questions": [URGENT] * 401}, "questions"),
        (
            {"questions": [URGENT, URGENT | {"instructions": [IMAGE]}]},
            "questions[1].instructions[0]",
        ),
        ({"questions": [TEAM | {"choices": [{"value": "a"}]}]}, "questions[0].choices"),
        ({"questions": [TEAM | {"choices": [{"value": "a"}] * 2}]}, "questions[0].choices"),
        ({"questions": [BAD | {"levels": [{"label": "a"}] * 11}]}, "questions[0].levels"),
        ({"questions": [URGENT | {"type": "essay"}]}, "questions[0]"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"temperature": 1}, "temperature"),
    ],
)
async def test_what_cannot_be_asked_is_named(
    client: Any, changes: dict[str, Any], param: str
) -> None:
    answer = await client.post("/v1/decisions", json=body_of(URGENT) | changes)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_a_long_input_is_refused_before_anything_runs(
    make_runtime: Any, make_client: Any
) -> None:
    engine = ScoredEngine(likely, max_model_len=64)
    client = await make_client(make_runtime(engine=engine))
    answer = await client.post("/v1/decisions", json=body_of(URGENT, input="word " * 100))
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert answer.json()["error"]["param"] == "input"
    assert engine.asked == []


async def test_an_engine_that_cannot_is_named(make_runtime: Any, make_client: Any) -> None:
    engine = ScoredEngine(likely, capabilities=Capabilities(lacks=frozenset({"logit_bias"})))
    client = await make_client(make_runtime(engine=engine))
    answer = await client.post("/v1/decisions", json=body_of(URGENT))
    assert answer.status_code == 501
    assert "logit_bias" in answer.json()["error"]["message"]


async def test_a_wrong_model_is_not_found(client: Any) -> None:
    for route in ("/v1/decisions", "/v1/systemone"):
        body = body_of(URGENT, model="gpt-6-luna")
        if route == "/v1/systemone":
            body = {"model": "gpt-6-luna", "state": "x", "questions": {"a": {"type": "noul"}}}
        assert (await client.post(route, json=body)).status_code == 404


async def test_an_adapter_decides(make_runtime: Any, make_client: Any) -> None:
    engine = ScoredEngine(likely)
    client = await make_client(replace(make_runtime(engine=engine), adapters=OneAdapter()))
    answer = await client.post("/v1/decisions", json=body_of(URGENT, TEAM, model="french"))
    assert (answer.status_code, answer.json()["model"]) == (200, "french")
    assert {each.adapter and each.adapter.name for each in engine.asked} == {"french"}
    assert len({each.cache_salt for each in engine.asked} - {None}) == 1


async def test_thoughts_come_before_the_answer(make_runtime: Any, make_client: Any) -> None:
    thoughts = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    thoughts += "<|channel|>final<|message|>"
    engine = ScoredEngine(likely, num_told=1, thoughts=thoughts)
    client = await make_client(make_runtime(engine=engine))
    body = body_of(URGENT, TEAM, reasoning={"effort": "low"})
    answer = await client.post("/v1/decisions", json=body)
    assert answer.status_code == 200, answer.text
    predicate, choice = answer.json()["answers"]
    assert predicate["probability"] == pytest.approx(0.75)
    assert choice["choice"] is True
    forced = [request for request in engine.asked if request.sampling.logit_bias]
    assert len(forced) == 3  # no; A and C
    for request in forced:
        assert decode_marked(request.prompt_token_ids).endswith(f"assistant{thoughts}")
    usage = answer.json()["usage"]
    assert usage["output_tokens_details"]["reasoning_tokens"] == 2 * len(encode_text("Hm."))


async def test_thoughts_without_an_answer_are_a_refusal(
    make_runtime: Any, make_client: Any
) -> None:
    client = await make_client(make_runtime("<|channel|>analysis<|message|>Hm."))
    body = body_of(URGENT, reasoning={"effort": "low"})
    answer = await client.post("/v1/decisions", json=body)
    assert answer.json()["answers"] == [{"type": "refusal", "name": "urgent"}]


async def test_system_one_has_answers_by_id(client: Any, engine: ScoredEngine) -> None:
    body = {
        "model": MODEL,
        "state": {"ticket": "It is broken."},
        "questions": {
            "urgent": {"type": "noul", "instructions": "Urgent?", "criteria": {"true": "now"}},
            "team": {"type": "choice", "instructions": "Team?", "criteria": {"a": None, "b": "B"}},
            "bad": {"type": "score", "instructions": "How bad?", "criteria": ["low", {"n": 1}]},
        },
    }
    answer = await client.post("/v1/systemone", json=body)
    assert answer.status_code == 200, answer.text
    answers = answer.json()["answers"]
    assert answers["urgent"]["noul"] == pytest.approx(0.75)
    assert answers["team"]["choice"] == "b"
    assert answers["team"]["probabilities"] == pytest.approx({"a": 1 / 3, "b": 2 / 3})
    assert answers["bad"]["score"] == pytest.approx(0.5)
    assert answers["bad"]["legend"] == {"0": "low", "1": {"n": 1}}
    assert answer.json()["usage"]["input_tokens"] > 0
    assert '{"ticket":"It is broken."}' in decode_marked(engine.asked[0].prompt_token_ids)


def test_every_code_is_one_token() -> None:
    """So that the next token is the whole answer."""
    codes = {*wording.choice("", [("", "")] * 255, "").codes}
    codes |= {*wording.choice("", [("", "")] * 26, "").codes, *wording.predicate("", "").codes}
    ids = [encode_text(code) for code in codes]
    assert len(codes) == 255 + 26 + 2
    assert {len(each) for each in ids} == {1}
    assert len({each[0] for each in ids}) == len(codes)


def test_confidence_is_that_over_a_guess() -> None:
    assert figures.choice_confidence([0.25] * 4) == 0
    assert figures.choice_confidence([1, 0]) == 1
    assert figures.score_confidence([0, 0, 1]) == 1
    assert figures.score_confidence([1 / 3] * 3) == 0
    assert 0 < figures.score_confidence([0.1, 0.2, 0.7]) < 1
