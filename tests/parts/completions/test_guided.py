"""Raw continuations that a grammar guides, by the native engine, whose model writes noise."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from tests.service.api.chat.test_guided import (
    CITY,
    ENDS,
    _one_thread,
    client,
    folder,
    schema_format,
)

__all__ = ["_one_thread", "client", "folder"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("outputs", "is_right"),
    [
        ({"structured_outputs": {"choice": ["yes", "no"]}}, lambda text: text in ("yes", "no")),
        ({"structured_outputs": {"regex": "[a-c]{2,4}"}}, lambda text: {*text} <= {*"abc"}),
        ({"structured_outputs": {"json": CITY}}, lambda text: "city" in json.loads(text)),
        ({"response_format": schema_format(CITY)}, lambda text: "city" in json.loads(text)),
    ],
)
async def test_a_raw_continuation_can_be_guided(
    client: httpx2.AsyncClient, outputs: Any, is_right: Any
) -> None:
    body = {"model": "gpt-oss-20b", "prompt": "Well:", "n": 3, "seed": 1, "logit_bias": ENDS}
    answer = await client.post("/v1/completions", json=body | {"max_tokens": 200} | outputs)
    assert answer.status_code == 200, answer.text
    ended = [c["text"] for c in answer.json()["choices"] if c["finish_reason"] == "stop"]
    assert ended
    assert all(map(is_right, ended)), ended


async def test_two_forms_of_a_raw_continuation_are_refused(client: httpx2.AsyncClient) -> None:
    outputs = {"structured_outputs": {"choice": ["a"]}, "response_format": schema_format(CITY)}
    body = {"model": "gpt-oss-20b", "prompt": "Well:"}
    answer = await client.post("/v1/completions", json=body | outputs)
    assert answer.json()["error"]["param"] == "structured_outputs"
