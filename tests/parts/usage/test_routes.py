"""What callers see of usage, and whose."""

from __future__ import annotations

import asyncio
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2
import pytest

from auth.base import PrincipalLimits
from engines.parts import folders
from parts.usage.counting.ledger import Ledger
from service.store.base import StoreError
from tests.parts.usage.conftest import NUM_HELLO, Clock, Open, as_, ledger_of
from tests.service.conftest import NOON, OneAdapter

DAY_S = 86_400


async def usage(client: httpx2.AsyncClient, who: str, **query: str) -> list[dict[str, Any]]:
    answer = await client.get("/v1/usage", params=query, headers=as_(who))
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["data"]
    return rows


async def chat(client: httpx2.AsyncClient, who: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post("/v1/chat/completions", json=body, headers=as_(who))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["usage"]
    return found


async def test_a_tenant_sees_its_own_usage_and_an_administrator_all(
    open_service: Open, chat_body: Any
) -> None:
    client, other = await open_service(), await open_service()
    said = [await chat(client, "team.a", chat_body()) for _ in range(2)]
    said.append(await chat(other, "team.b", chat_body()))
    await chat(client, "rival.c", chat_body())
    await ledger_of(other).write()  # within a second of its own accord
    rows = await usage(client, "team.a", group_by="key")
    assert [row["key"] for row in rows] == ["key-a", "key-b"]
    assert [row["requests"] for row in rows] == [2, 1]
    assert rows[0]["input_tokens"] == sum(each["prompt_tokens"] for each in said[:2])
    assert rows[0]["output_tokens"] == sum(each["completion_tokens"] for each in said[:2])
    everything = await usage(client, "x.root", group_by="tenant,model,day")
    assert [(row["tenant"], row["requests"]) for row in everything] == [("rival", 1), ("team", 3)]
    assert {row["model"] for row in everything} == {"gpt-oss-20b"}
    assert {row["day"] for row in everything} == {"2026-09-21"}


async def test_requests_to_an_adapter_are_counted_under_its_name(
    open_service: Open, chat_body: Any
) -> None:
    client = await open_service(adapters=OneAdapter())
    for model in ("french", "french", "gpt-oss-20b"):
        await chat(client, "team.a", chat_body(model=model))
    rows = await usage(client, "team.a", group_by="model")
    assert {row["model"]: row["requests"] for row in rows} == {"french": 2, "gpt-oss-20b": 1}


async def test_days_are_chosen_and_kept_apart(
    open_service: Open, chat_body: Any, clock: Clock
) -> None:
    client = await open_service()
    for _ in range(3):
        await chat(client, "team.a", chat_body())
        clock.now += DAY_S
    rows = await usage(client, "team.a", start="2026-09-22", end="2026-09-30")
    assert [(row["day"], row["requests"]) for row in rows] == [("2026-09-22", 1), ("2026-09-23", 1)]
    assert len(await usage(client, "team.a")) == 3


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"group_by": "key,nobody"}, "group_by"),
        ({"group_by": "key,key"}, "group_by"),
        ({"start": "2026-09-30", "end": "2026-09-01"}, "start"),
        ({"start": "soon"}, "start"),
    ],
)
async def test_a_wrong_question_names_its_field(
    open_service: Open, query: dict[str, str], param: str
) -> None:
    client = await open_service()
    answer = await client.get("/v1/usage", params=query, headers=as_("team.a"))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_csv_runs_no_formula(open_service: Open, chat_body: Any) -> None:
    client = await open_service()
    await chat(client, "=cmd().a", chat_body())
    query = {"group_by": "tenant,key"}
    headers = as_("x.root") | {"Accept": "text/csv"}
    answer = await client.get("/v1/usage", params=query, headers=headers)
    assert answer.headers["content-type"].startswith("text/csv")
    head, row = answer.text.splitlines()
    counts = "requests,input_tokens,cached_tokens,output_tokens,reasoning_tokens,gpu_seconds"
    assert head == f"tenant,key,{counts}"
    assert row.startswith("'=cmd(),")


async def test_a_stream_that_its_client_leaves_is_counted_to_where_it_came(
    open_service: Open, chat_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await open_service(step_s=0.02)
    counted = asyncio.Event()
    observe = Ledger.observe

    def seen(self: Ledger, generation: Any) -> None:
        observe(self, generation)
        counted.set()

    metrics = client.runtime.metrics  # type: ignore[attr-defined]
    metrics.observers[:] = [lambda generation: seen(ledger_of(client), generation)]
    app = client.runtime.jobs.app  # type: ignore[attr-defined]
    body = httpx2.Request(
        "POST", "http://service", json=chat_body(stream=True, max_tokens=5000, logit_bias={})
    ).content
    received = asyncio.Event()
    given = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if given:
            return given.pop()
        await received.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if b"data:" in message.get("body", b""):
            received.set()

    headers = [(b"authorization", b"Bearer team.a"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": headers,
        "client": None,
        "server": None,
        "scheme": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
        "state": {},
    }
    await app(scope, receive, send)
    async with asyncio.timeout(60):
        await counted.wait()
    (row,) = await usage(client, "team.a")
    assert row["requests"] == 1
    assert row["input_tokens"] > 0
    assert row["output_tokens"] >= 1


async def test_what_never_reached_the_engine_is_not_counted(
    open_service: Open, chat_body: Any
) -> None:
    client = await open_service(limits={"a": PrincipalLimits(tokens_per_day=1)})
    await chat(client, "team.a", chat_body())
    answer = await client.post("/v1/chat/completions", json=chat_body(), headers=as_("team.a"))
    assert answer.status_code == 429
    (row,) = await usage(client, "team.a")
    assert row["requests"] == 1
    page = (await client.get("/metrics", headers=as_("x.root"))).text
    counted = [line for line in page.splitlines() if line.startswith("harmonium_prompt_tokens_to")]
    assert sum(float(line.rpartition(" ")[2]) for line in counted) == row["input_tokens"]


async def test_a_store_that_was_away_loses_nothing(
    open_service: Open, chat_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await open_service()
    ledger = ledger_of(client)
    write, is_away = ledger.store.write, [True]

    async def failing(*args: Any) -> None:
        if is_away[0]:
            raise StoreError("away")
        await write(*args)

    monkeypatch.setattr(ledger.store, "write", failing)
    await chat(client, "team.a", chat_body())
    with pytest.raises(StoreError):
        await ledger.write()
    answer = await client.get("/v1/usage", headers=as_("team.a"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_failed")
    await chat(client, "team.a", chat_body())
    is_away[0] = False
    (row,) = await usage(client, "team.a")
    assert row["requests"] == 2


async def test_nothing_is_counted_where_nobody_asked_for_it(
    open_service: Open, chat_body: Any
) -> None:
    client = await open_service(counts_all=False)
    await chat(client, "team.a", chat_body())
    answer = await client.get("/v1/usage", headers=as_("x.root"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "usage_off")
    assert await ledger_of(client).store.rows(ledger_of(client).today, None) == {}


async def run_batch(client: httpx2.AsyncClient, who: str, num_lines: int) -> dict[str, Any]:
    """The batch when it has ended."""
    body = {"model": "gpt-oss-20b", "messages": [{"role": "user", "content": "Hi"}]}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    lines = "".join(json.dumps({"custom_id": f"n{n}"} | line) + "\n" for n in range(num_lines))
    file = await client.post(
        "/v1/files",
        files={"file": ("in.jsonl", lines.encode())},
        data={"purpose": "batch"},
        headers=as_(who),
    )
    asked = {
        "input_file_id": file.json()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    batch: dict[str, Any] = (await client.post("/v1/batches", json=asked, headers=as_(who))).json()
    async with asyncio.timeout(60):
        while batch["status"] != "completed":
            await asyncio.sleep(0.02)
            batch = (await client.get(f"/v1/batches/{batch['id']}", headers=as_(who))).json()
    return batch


def files_in(folder: Path) -> object:
    return import_module("parts.batches.files.folder").FilesFolder(folder / "files")


@pytest.mark.skipif("batches" not in folders(), reason="the part batches was removed")
async def test_requests_of_batches_are_counted_for_their_caller(
    open_service: Open, tmp_path: Path
) -> None:
    client = await open_service(parts=(files_in(tmp_path),))
    await run_batch(client, "team.a", 3)
    (row,) = await usage(client, "team.a", group_by="key")
    assert (row["key"], row["requests"], row["output_tokens"]) == ("key-a", 3, 3 * NUM_HELLO)


@pytest.mark.skipif("batches" not in folders(), reason="the part batches was removed")
async def test_the_rest_of_a_batch_fails_when_the_budget_is_used_up(
    open_service: Open, tmp_path: Path
) -> None:
    limits = {"a": PrincipalLimits(tokens_per_month=100)}
    client = await open_service(limits=limits, parts=(files_in(tmp_path),), max_num_seqs=1)
    batch = await run_batch(client, "team.a", 20)
    counts = batch["request_counts"]
    assert counts["completed"] >= 1
    assert counts["failed"] >= 10
    assert counts["completed"] + counts["failed"] == 20
    path = f"/v1/files/{batch['error_file_id']}/content"
    errors = (await client.get(path, headers=as_("team.a"))).text.splitlines()
    bodies = [json.loads(line)["response"]["body"] for line in errors]
    assert {body["error"]["code"] for body in bodies} == {"insufficient_quota"}


async def test_every_route_that_a_key_opens_counts_as_its_use(open_service: Open) -> None:
    client = await open_service()
    await client.get("/v1/models", headers=as_("team.a"))
    await ledger_of(client).write()
    assert await ledger_of(client).store.uses() == {"key-a": int(NOON)}
