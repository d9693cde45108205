"""Anthropic's message batches: of whom they are, and how they end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.needs import needs
from tests.parts.batches.conftest import PATIENCE_S

pytestmark = needs("messages")

PATH = "/v1/messages/batches"
SCOPES = frozenset({"inference", "batch"})


def asked(num: int, **params: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hi"}]
    params = {"model": "gpt-oss-20b", "max_tokens": 40, "messages": messages} | params
    return {"requests": [{"custom_id": f"n{n}", "params": params} for n in range(num)]}


async def until_ended(client: Any, id: str, **more: Any) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            batch: dict[str, Any] = (await client.get(f"{PATH}/{id}", **more)).json()
            if batch["processing_status"] == "ended":
                return batch
            await asyncio.sleep(0.01)


async def test_another_tenant_finds_none(open_service: Any) -> None:
    client = await open_service(scopes=SCOPES)
    mine, others = ({"headers": {"x-api-key": name}} for name in "ab")
    made = await client.post(PATH, json=asked(2), **mine)
    assert made.status_code == 200, made.text
    id = made.json()["id"]
    for path in (f"{PATH}/{id}", f"{PATH}/{id}/results"):
        answer = await client.get(path, **others)
        assert answer.status_code == 404
        assert answer.json()["error"]["type"] == "not_found_error"
    assert (await client.post(f"{PATH}/{id}/cancel", **others)).status_code == 404
    assert (await client.delete(f"{PATH}/{id}", **others)).status_code == 404
    assert (await client.get(PATH, **others)).json()["data"] == []
    await until_ended(client, id, **mine)
    assert [each["id"] for each in (await client.get(PATH, **mine)).json()["data"]] == [id]


async def test_a_key_without_the_scope_batch_may_not(open_service: Any) -> None:
    client = await open_service(scopes=frozenset({"inference"}))
    answer = await client.post(PATH, json=asked(1), headers={"x-api-key": "a"})
    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "permission_error"


async def test_a_cancelled_batch_has_a_result_for_each_request(open_service: Any) -> None:
    client = await open_service(step_s=60)
    id = (await client.post(PATH, json=asked(60))).json()["id"]
    assert (await client.delete(f"{PATH}/{id}")).status_code == 409
    early = await client.get(f"{PATH}/{id}/results")
    assert early.status_code == 404
    cancelled = (await client.post(f"{PATH}/{id}/cancel")).json()
    assert cancelled["processing_status"] in ("canceling", "ended")
    batch = await until_ended(client, id)
    counts = batch["request_counts"]
    assert sum(counts.values()) == 60
    assert counts["canceled"] > 0
    results = (await client.get(batch["results_url"])).text.splitlines()
    found = {line["custom_id"]: line["result"]["type"] for line in map(json.loads, results)}
    assert len(found) == len(results) == 60
    assert sum(type == "canceled" for type in found.values()) == counts["canceled"]
    seen = (await client.get(f"/v1/batches/{id}")).json()
    assert seen["status"] == "cancelled"
    assert "not_run" not in seen
    assert (await client.delete(f"{PATH}/{id}")).status_code == 200
    assert (await client.get("/v1/files")).json()["data"] == []


async def test_a_request_that_cannot_be_served_is_one_errored_result(open_service: Any) -> None:
    client = await open_service()
    body = asked(3)
    body["requests"][1]["params"] = body["requests"][1]["params"] | {"model": "another"}
    id = (await client.post(PATH, json=body)).json()["id"]
    batch = await until_ended(client, id)
    assert (batch["request_counts"]["succeeded"], batch["request_counts"]["errored"]) == (2, 1)
    lines = map(json.loads, (await client.get(f"{PATH}/{id}/results")).text.splitlines())
    results = {line["custom_id"]: line["result"] for line in lines}
    assert [results[f"n{n}"]["type"] for n in range(3)] == ["succeeded", "errored", "succeeded"]
    assert results["n1"]["error"]["error"]["type"] == "not_found_error"


async def test_what_no_batch_can_have_is_refused_by_name(open_service: Any) -> None:
    client = await open_service()
    for body, field in (
        (asked(2, stream=True), "requests.0.params.stream"),
        ({"requests": asked(1)["requests"] * 2}, "requests.1.custom_id"),
        ({"requests": []}, "requests"),
    ):
        answer = await client.post(PATH, json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["details"]["param"] == field
    assert (await client.get("/v1/files")).json()["data"] == []
