"""Items that change the effort and the answer's form in the middle of a conversation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from service.runtime import Runtime
from tests.service.remembering import Remembering

Fixture = Callable[..., Any]
Wired = Callable[..., Runtime]

PATH = "/v1/responses"
ASKS = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}}
FORM = {"type": "json_schema", "name": "said", "schema": SCHEMA}


def update(**settings: Any) -> dict[str, Any]:
    return {"type": "configuration_update", **settings}


async def test_the_last_update_holds_also_for_what_continues(
    wired: Wired, make_client: Fixture, body: Fixture, model: Remembering
) -> None:
    client = await make_client(wired())
    items = [update(reasoning={"effort": "low"}), ASKS, update(reasoning={"effort": "high"})]
    first = await client.post(PATH, json=body(input=items, reasoning={"effort": "medium"}))
    assert first.json()["reasoning"]["effort"] == "high"
    assert "Reasoning: high" in model.prompts[-1]
    follow = body(input=[ASKS], previous_response_id=first.json()["id"])
    assert (await client.post(PATH, json=follow)).json()["reasoning"]["effort"] == "high"
    listed = (await client.get(f"{PATH}/{first.json()['id']}/input_items")).json()["data"]
    assert [item["type"] for item in listed].count("configuration_update") == 2


async def test_an_update_of_the_form_is_enforced_until_it_is_taken_back(
    wired: Wired, make_client: Fixture, body: Fixture, model: Remembering
) -> None:
    client = await make_client(wired())
    formed = await client.post(PATH, json=body(input=[update(text={"format": FORM}), ASKS]))
    assert formed.json()["text"]["format"]["schema"] == SCHEMA
    assert "word" in model.prompts[-1]
    items = [update(text={"format": FORM}), update(text={"format": {"type": "text"}}), ASKS]
    plain = await client.post(PATH, json=body(input=items))
    assert plain.json()["text"]["format"] == {"type": "text"}
    assert "word" not in model.prompts[-1]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"background_options": {"completion_window": "2h"}}, 400),
        ({"background_options": {"completion_window": "8h"}, "background": True}, 200),
        (
            {
                "background_options": {"completion_window": "8h"},
                "background": True,
                "stream": True,
            },
            400,
        ),
        ({"background_options": {"completion_window": "soonest"}}, 200),
        ({"background_options": {"completion_window": "1h"}}, 400),
    ],
)
async def test_a_completion_window_is_of_the_background(
    wired: Wired, make_client: Fixture, body: Fixture, changes: Any, status: int
) -> None:
    client = await make_client(wired())
    answer = await client.post(PATH, json=body(**changes))
    assert answer.status_code == status
    if status == 400:
        param = "background_options.completion_window"
        assert answer.json()["error"]["param"] == param
