"""OpenAI's client asks questions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake.scored import ScoredEngine

pytestmark = pytest.mark.heavy  # loads the SDK


async def test_openais_client_reads_the_answers(serve: Any, openai_sdk: Any) -> None:
    url = await serve(engine=ScoredEngine(lambda _: {"yes": 0.3, "no": 0.1, "A": 0.2, "B": 0.1}))
    async with openai_sdk.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        decision = await client.decisions.create(
            model="gpt-oss-20b",
            input=[{"role": "user", "content": "It is broken."}],
            questions=[
                {"type": "predicate", "instructions": "Urgent?", "name": "urgent"},
                {
                    "type": "choice",
                    "instructions": "Team?",
                    "choices": [{"value": "web"}, {"value": True}],
                },
            ],
            prompt_cache_key="mine",
            safety_identifier="someone",
        )
    predicate, choice = decision.answers
    assert predicate.type == "predicate"
    assert predicate.probability == pytest.approx(0.75)
    assert predicate.name == "urgent"
    assert choice.choice == "web"
    assert choice.probabilities[1].value is True
    assert decision.usage.input_tokens_details.cached_tokens == 0
