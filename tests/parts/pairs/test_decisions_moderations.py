"""POST /v1/moderations: a policy of three rules, on an engine whose probabilities are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from parts.decisions.decider import LabelDecider
from parts.moderations.policy import Category, Policy
from service.harmony.vocabulary import decode_marked
from tests.fake.scored import ScoredEngine
from tests.service.conftest import OneAdapter

POLICY = Policy(
    {
        "spam": Category("Adverts that were not asked for."),
        "self-harm": Category("Praise of self-harm.", threshold=0.1),
        "leaks": Category("Passwords."),
    },
    "Our forum is about gardens.",
)
LIKELY = {"spam": {"yes": 0.6, "no": 0.2}, "self-harm": {"yes": 0.1, "no": 0.7}}


def likely(prompt: str) -> Mapping[str, float]:
    """By the category and the content; only adverts violate anything."""
    name = prompt.rpartition("# Instructions\n\n")[2].partition("\n")[0]
    bad = LIKELY.get(name) if "Buy now" in prompt else None
    return bad or {"yes": 0.01, "no": 0.9}


def served(make_runtime: Any, engine: ScoredEngine, policy: Policy | None = POLICY) -> Any:
    runtime = make_runtime(engine=engine)
    parts = [LabelDecider(runtime), *([policy] if policy else [])]
    return replace(runtime, parts=(*runtime.parts, *parts))


@pytest.fixture
def engine() -> ScoredEngine:
    return ScoredEngine(likely)


async def test_each_content_is_rated_by_each_rule(
    make_runtime: Any, make_client: Any, engine: ScoredEngine
) -> None:
    client = await make_client(served(make_runtime, engine))
    body = {"input": ["Roses need sun.", "Buy now!"], "model": "omni-moderation-latest"}
    answer = await client.post("/v1/moderations", json=body)
    assert answer.status_code == 200, answer.text
    good, bad = answer.json()["results"]
    assert good["flagged"] is False
    assert bad["flagged"] is True
    assert bad["categories"] == {"spam": True, "self-harm": True, "leaks": False}
    assert bad["category_scores"] == pytest.approx(
        {"spam": 0.75, "self-harm": 0.125, "leaks": 0.01 / 0.91}
    )
    assert bad["category_applied_input_types"]["spam"] == ["text"]
    prompt = decode_marked(engine.asked[0].prompt_token_ids)
    for text in ("Our forum is about gardens.", "## leaks\nPasswords.", "Roses need sun."):
        assert text in prompt


async def test_an_adapter_rates(make_runtime: Any, make_client: Any, engine: ScoredEngine) -> None:
    client = await make_client(replace(served(make_runtime, engine), adapters=OneAdapter()))
    answer = await client.post("/v1/moderations", json={"input": "Buy now!", "model": "french"})
    assert (answer.status_code, answer.json()["model"]) == (200, "french")
    assert {each.adapter and each.adapter.name for each in engine.asked} == {"french"}


async def test_parts_are_one_content(
    make_runtime: Any, make_client: Any, engine: ScoredEngine
) -> None:
    client = await make_client(served(make_runtime, engine))
    parts = [{"type": "text", "text": "Buy "}, {"type": "text", "text": "now!"}]
    answer = await client.post("/v1/moderations", json={"input": parts})
    assert [each["flagged"] for each in answer.json()["results"]] == [True]
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    refused = await client.post("/v1/moderations", json={"input": [parts[0], image]})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "input[1]"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"input": "x", "model": "gpt-6"}, 404, "model"),
        ({"input": []}, 400, "input"),
        ({"input": ["x"] * 129}, 400, "input"),
        ({"input": ["x", "word " * 2000]}, 400, "input[1]"),
    ],
)
async def test_what_cannot_be_rated_is_named(
    make_runtime: Any, make_client: Any, body: dict[str, Any], status: int, param: str
) -> None:
    client = await make_client(served(make_runtime, ScoredEngine(likely, max_model_len=512)))
    answer = await client.post("/v1/moderations", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_without_a_policy_there_is_no_route(
    make_runtime: Any, make_client: Any, engine: ScoredEngine
) -> None:
    client = await make_client(served(make_runtime, engine, None))
    answer = await client.post("/v1/moderations", json={"input": "x"})
    assert answer.status_code == 404
    assert "NIM_MODERATION_POLICY_PATH" in answer.json()["error"]["message"]


@pytest.mark.heavy
async def test_openais_client_moderates(
    make_runtime: Any, openai_sdk: Any, engine: ScoredEngine
) -> None:
    from service.run.listener import listen, url_of
    from service.run.server import ApiServer

    runtime = served(make_runtime, engine)
    await runtime.engine.start()
    try:
        with listen("127.0.0.1", 0) as listener:
            async with ApiServer(runtime).listening(listener):
                url = f"{url_of(listener)}/v1"
                async with openai_sdk.AsyncOpenAI(base_url=url, api_key="-") as client:
                    answer = await client.moderations.create(input="Buy now!")
    finally:
        await runtime.engine.stop()
    [result] = answer.results
    assert result.flagged
    assert result.categories.self_harm
    assert result.category_scores.spam == pytest.approx(0.75)
    assert result.categories.leaks is False
