"""A refusal has Anthropic's shape, whatever refuses."""

from __future__ import annotations

from typing import Any

from auth.base import Principal, Scope
from tests.auth.conftest import client_of

__all__ = ["client_of"]


async def test_a_key_without_the_scope_is_refused_in_its_shape(client_of: Any) -> None:
    client = await client_of(p=Principal("p", scopes=frozenset({Scope.METRICS})))
    refused = (await client.post("/v1/messages", headers={"x-api-key": "p"})).json()
    assert refused["type"] == "error"
    assert refused["error"]["type"] == "permission_error"
