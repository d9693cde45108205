"""`model` may be left out: the server has one model, which then answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from auth.base import Credentials, Principal
from tests.parts.families.table import BODIES, CHAT, MESSAGES, MODEL, RESPONSES

Fixture = Callable[..., Any]
ANSWER = "<|channel|>final<|message|>Hello!<|return|>"
# Without an answer, and llama.cpp's paths.
ALSO = {
    f"{CHAT}/render": BODIES[CHAT],
    "/apply-template": BODIES[CHAT],
    f"{RESPONSES}/input_tokens": BODIES[RESPONSES],
    "/responses": BODIES[RESPONSES],
    f"{MESSAGES}/count_tokens": {"messages": BODIES[MESSAGES]["messages"]},
    "/tokenize": {"prompt": "Hi"},
}


@dataclass(frozen=True)
class ByName:
    """The name of a key is the model that it may use."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        return Principal(credentials.value, models=(credentials.value,))


@pytest.mark.parametrize("unnamed", [{}, {"model": None}, {"model": ""}])
@pytest.mark.parametrize("path", [*BODIES, *ALSO])
async def test_the_served_model_answers_to_those_who_may_use_it(
    make_runtime: Fixture,
    make_client: Fixture,
    path: str,
    unnamed: dict[str, Any],
) -> None:
    client = await make_client(make_runtime(ANSWER, authenticator=ByName()))
    body = (BODIES | ALSO)[path] | unnamed
    answer = await client.post(path, json=body, headers={"X-API-Key": MODEL["model"]})
    assert answer.status_code == 200, answer.text
    if path in BODIES:
        assert answer.json()["model"] == MODEL["model"]
    refused = await client.post(path, json=body, headers={"X-API-Key": "other"})
    assert refused.status_code == 403, refused.text


@pytest.mark.parametrize("path", [*BODIES, *ALSO])
async def test_another_model_is_still_not_found(
    make_runtime: Fixture, make_client: Fixture, path: str
) -> None:
    client = await make_client(make_runtime(ANSWER))
    answer = await client.post(path, json=(BODIES | ALSO)[path] | {"model": "other"})
    assert answer.status_code == 404
    assert "'other' is not served here" in answer.text
