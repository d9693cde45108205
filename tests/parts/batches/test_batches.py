"""Batches from the upload to their results, in both stores."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from auth.base import PrincipalLimits, Scope
from parts.batches import results, run
from parts.batches.store.base import StorageFull
from parts.batches.stored import storage_of
from service.admission.gate import Bounds, Gate, Quotas
from tests.parts.batches.conftest import content, create, jsonl, line, until, until_done, upload

BOTH = frozenset({Scope.BATCH, Scope.INFERENCE})

PREDICATE = {"type": "predicate", "instructions": "Is it a fruit?"}


async def test_every_request_has_one_line_of_results(open_service: Any) -> None:
    client = await open_service()
    made = await create(
        client,
        *(line(f"n{n}") for n in range(30)),
        line("wrong", temperature=9),
        line("unnamed", model=None),
        metadata={"a": "b"},
    )
    assert made["status"] == "validating"
    assert made["expires_at"] == made["created_at"] + 86_400
    batch = await until(client, made["id"])
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 32, "completed": 31, "failed": 1}
    assert batch["metadata"] == {"a": "b"}
    for name in ("in_progress_at", "finalizing_at", "completed_at"):
        assert batch[name]
    done = await content(client, batch["output_file_id"])
    assert sorted(each["custom_id"] for each in done) == [
        *sorted(f"n{n}" for n in range(30)),
        "unnamed",
    ]
    for each in done:
        assert each["id"].startswith("batch_req_")
        assert each["error"] is None
        response = each["response"]
        assert response["status_code"] == 200
        assert response["request_id"].startswith("req-")
        assert response["body"]["choices"][0]["message"]["content"] == "Hello!"
    usages = [each["response"]["body"]["usage"] for each in done]
    assert batch["usage"]["input_tokens"] == sum(usage["prompt_tokens"] for usage in usages)
    assert batch["usage"]["output_tokens"] == sum(usage["completion_tokens"] for usage in usages)
    [wrong] = await content(client, batch["error_file_id"])
    assert wrong["custom_id"] == "wrong"
    assert wrong["response"]["status_code"] == 400
    assert "temperature" in wrong["error"]["message"]
    for id in (batch["output_file_id"], batch["error_file_id"]):
        assert (await client.get(f"/v1/files/{id}")).json()["purpose"] == "batch_output"


@pytest.mark.parametrize(
    ("lines", "faults"),
    [
        ([line("a"), line("a")], [(2, "duplicate_custom_id")]),
        ([line("a"), line("b", url="/v1/completions")], [(2, "mismatched_url")]),
        ([line("a", stream=True)], [(1, "unsupported_value")]),
        (["{", line("b"), "[]"], [(1, "invalid_json_line"), (3, "invalid_json_line")]),
        ([line("a", model="gpt-9")], [(1, "model_not_found")]),
        ([line("a", model=["gpt-9"])], [(1, "invalid_body")]),
        ([{**line("a"), "method": "GET"}], [(1, "invalid_method")]),
        ([{**line("a"), "custom_id": ""}], [(1, "invalid_custom_id")]),
        ([], [(1, "empty_file")]),
        (["no"] * 150, [(n, "invalid_json_line") for n in range(1, 101)]),
    ],
)
async def test_a_fault_in_any_line_ends_the_batch_before_it_runs(
    open_service: Any, lines: list[Any], faults: list[tuple[int, str]]
) -> None:
    client = await open_service()
    batch = await until(client, (await create(client, *lines))["id"])
    assert batch["status"] == "failed"
    assert batch["failed_at"]
    assert [(fault["line"], fault["code"]) for fault in batch["errors"]["data"]] == faults
    assert batch["output_file_id"] is batch["error_file_id"] is None


async def test_a_cancelled_batch_keeps_what_is_done(open_service: Any) -> None:
    client = await open_service(step_s=0.01, max_num_seqs=2)
    made = await create(client, *(line(f"n{n}") for n in range(200)))
    await until_done(client, made["id"], 3)
    answer = await client.post(f"/v1/batches/{made['id']}/cancel")
    assert answer.json()["status"] == "cancelling"
    batch = await until(client, made["id"])
    assert batch["status"] == "cancelled"
    assert batch["cancelling_at"]
    assert batch["cancelled_at"]
    done = await content(client, batch["output_file_id"])
    assert 3 <= len(done) == batch["request_counts"]["completed"] < 200
    again = await client.post(f"/v1/batches/{made['id']}/cancel")
    assert again.json()["status"] == "cancelled"


async def test_the_input_of_a_running_batch_cannot_be_deleted(open_service: Any) -> None:
    client = await open_service(step_s=0.05, max_num_seqs=1)
    made = await create(client, *(line(f"n{n}") for n in range(50)))
    path = f"/v1/files/{made['input_file_id']}"
    refused = await client.delete(path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "file_in_use")
    await client.post(f"/v1/batches/{made['id']}/cancel")
    await until(client, made["id"])
    assert (await client.delete(path)).json()["deleted"] is True
    assert (await client.get(path)).status_code == 404


async def test_tenants_do_not_see_each_other(open_service: Any) -> None:
    client = await open_service(scopes=BOTH)
    ann, bob = ({"X-API-Key": name} for name in ("ann", "bob"))
    made = await create(client, line("a"), headers=ann)
    await until(client, made["id"], headers=ann)
    file_id = made["input_file_id"]
    paths = (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content", f"/v1/batches/{made['id']}")
    for path in paths:
        unknown = path.replace(file_id, "file-x").replace(made["id"], "batch_x")
        theirs, none = [await client.get(each, headers=bob) for each in (path, unknown)]
        assert theirs.status_code == none.status_code == 404
        assert theirs.json()["error"]["code"] == none.json()["error"]["code"]
        assert (await client.get(path, headers=ann)).status_code == 200
    assert (await client.delete(paths[0], headers=bob)).status_code == 404
    assert (await client.post(f"{paths[2]}/cancel", headers=bob)).status_code == 404
    for path in ("/v1/files", "/v1/batches"):
        assert (await client.get(path, headers=bob)).json()["data"] == []
        assert len((await client.get(path, headers=ann)).json()["data"]) >= 1


@pytest.mark.parametrize("missing", sorted(BOTH))
async def test_a_caller_needs_both_scopes(open_service: Any, missing: Scope) -> None:
    client = await open_service(scopes=BOTH - {missing})
    key = {"X-API-Key": "ann"}
    uploaded = await upload(client, jsonl(line("a")), headers=key)
    if missing is Scope.BATCH:
        assert uploaded.status_code == 403
        return
    body = {
        "input_file_id": uploaded.json()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    assert (await client.post("/v1/batches", json=body, headers=key)).status_code == 403


async def test_pages_of_batches(open_service: Any) -> None:
    client = await open_service()
    ids = [(await create(client, line("a")))["id"] for _ in range(5)]
    first = (await client.get("/v1/batches", params={"limit": 2})).json()
    assert [each["id"] for each in first["data"]] == [ids[4], ids[3]]
    assert first["has_more"]
    rest = (await client.get("/v1/batches", params={"after": first["last_id"]})).json()
    assert [each["id"] for each in rest["data"]] == ids[2::-1]
    assert not rest["has_more"]
    assert (await client.get("/v1/batches", params={"after": "batch_x"})).status_code == 400


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"completion_window": "1h"}, "completion_window"),
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after"),
    ],
)
async def test_a_wrong_field_is_named(open_service: Any, change: Any, param: str) -> None:
    client = await open_service()
    file_id = (await upload(client, jsonl(line("a")))).json()["id"]
    body = {
        "input_file_id": file_id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    answer = await client.post("/v1/batches", json=body | change)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)
    unknown = await client.post("/v1/batches", json=body | {"input_file_id": "file-x"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "file_not_found")


async def test_another_worker_continues_where_one_stopped(open_service: Any) -> None:
    """Each custom_id is there once, whoever wrote it."""
    first = await open_service(step_s=0.01, max_num_seqs=4)
    made = await create(first, *(line(f"n{n}") for n in range(120)))
    await until_done(first, made["id"], 10)
    second = await open_service(max_num_seqs=4)
    second.runtime.jobs.start(lambda: 8)
    async with asyncio.timeout(60):
        await first.runtime.jobs.release()
    batch = await until(second, made["id"])
    assert batch["request_counts"] == {"total": 120, "completed": 120, "failed": 0}
    ids = [each["custom_id"] for each in await content(second, batch["output_file_id"])]
    assert sorted(ids) == sorted(f"n{n}" for n in range(120))
    folder = second.runtime.parts[0]
    assert sorted(folder.named("batch_")) == [
        name for name in folder.named("batch_") if "out" in name
    ]
    assert len(folder.named("batch_")) == 1


async def test_what_a_later_writer_took_over_is_not_added_to(open_service: Any) -> None:
    """A worker that comes back after its lease writes to a file that nobody reads."""
    client = await open_service(step_s=0.01, max_num_seqs=2)
    made = await create(client, *(line(f"n{n}") for n in range(2000)))
    runtime = client.runtime
    await until_done(client, made["id"], 3)
    store = storage_of(runtime).store
    assert await store.write(made["id"], 1 << 20, None)  # as the next claim does
    running = runtime.jobs.runs[made["id"]]
    async with asyncio.timeout(60):
        await running.ended.wait()
    assert running.ending == "lost"
    assert (await until(client, made["id"], "in_progress"))["output_file_id"] is None


async def test_bodies_are_sent_as_they_are(open_service: Any) -> None:
    """Also what Python takes for the end of a line, but JSON does not."""
    client = await open_service()
    body = {"model": "gpt-oss-20b", "prompt": "é\u2028", "max_tokens": 1, "echo": True}
    text = json.dumps(
        {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body},
        ensure_ascii=False,
    )
    if client.runtime.jobs.app.paths.row("/v1/completions").path != "/v1/completions":
        pytest.skip("the part completions was removed")
    batch = await until(client, (await create(client, text, endpoint="/v1/completions"))["id"])
    [done] = await content(client, batch["output_file_id"])
    assert done["response"]["body"]["choices"][0]["text"].startswith("é\u2028")


async def test_decisions_run_in_a_batch(open_service: Any) -> None:
    client = await open_service()
    if client.runtime.jobs.app.paths.row("/v1/decisions").path != "/v1/decisions":
        pytest.skip("the part decisions was removed")
    asked = {"model": "gpt-oss-20b", "input": "A pear.", "questions": [PREDICATE]}
    wrong = asked | {"questions": [PREDICATE, {"type": "choice", "instructions": "?"}]}
    url = "/v1/decisions"
    bodies = {"right": asked, "wrong": wrong}
    lines = [{"custom_id": id, "method": "POST", "url": url, "body": bodies[id]} for id in bodies]
    batch = await until(client, (await create(client, *lines, endpoint=url))["id"])
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    [done] = await content(client, batch["output_file_id"])
    alone = (await client.post(url, json=asked)).json()
    assert done["response"]["body"]["answers"] == alone["answers"]
    assert batch["usage"]["input_tokens"] == alone["usage"]["input_tokens"]
    [failed] = await content(client, batch["error_file_id"])
    assert failed["custom_id"] == "wrong"
    assert failed["response"]["body"]["error"]["param"].startswith("questions[1]")


async def test_a_full_disk_holds_a_batch_up_and_costs_no_line(
    open_service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await open_service(max_num_seqs=2)
    num_refused = 0

    def full(file: Any, pieces: Any) -> int:
        nonlocal num_refused
        num_refused += 1
        raise StorageFull

    monkeypatch.setattr(results, "append", full)
    made = await create(client, *(line(f"n{n}") for n in range(100)))
    async with asyncio.timeout(60):
        while num_refused < 2:
            await asyncio.sleep(0.01)
    batch = await until(client, made["id"], "in_progress")
    assert batch["request_counts"]["completed"] == 0
    monkeypatch.undo()
    batch = await until(client, made["id"])
    assert batch["request_counts"] == {"total": 100, "completed": 100, "failed": 0}
    ids = [each["custom_id"] for each in await content(client, batch["output_file_id"])]
    assert sorted(ids) == sorted(f"n{n}" for n in range(100))


async def test_an_expired_batch_keeps_what_is_done(
    open_service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await open_service(step_s=0.01, max_num_seqs=2)
    made = await create(client, *(line(f"n{n}") for n in range(100)))
    await until_done(client, made["id"], 3)
    monkeypatch.setattr(run, "WINDOW_S", 0)
    batch = await until(client, made["id"])
    assert batch["status"] == "expired"
    assert batch["expired_at"]
    done = await content(client, batch["output_file_id"])
    rest = await content(client, batch["error_file_id"])
    assert {each["error"]["code"] for each in rest} == {"batch_expired"}
    assert batch["request_counts"] == {"total": 100, "completed": len(done), "failed": len(rest)}
    ids = [each["custom_id"] for each in (*done, *rest)]
    assert sorted(ids) == sorted(f"n{n}" for n in range(100))


async def test_the_batches_of_one_tenant_leave_room_for_others(open_service: Any) -> None:
    client = await open_service(scopes=BOTH, step_s=0.02, max_num_seqs=4)
    ann, bob = ({"X-API-Key": name} for name in ("ann", "bob"))
    long = [line(f"n{n}") for n in range(400)]
    theirs = [await create(client, *long, headers=ann) for _ in range(9)]
    made = await create(client, *(line(f"n{n}") for n in range(10)), headers=bob)
    batch = await until(client, made["id"], headers=bob)
    assert batch["status"] == "completed"
    states = [
        await until(client, each["id"], "validating", "in_progress", headers=ann) for each in theirs
    ]
    assert [each["status"] for each in states].count("in_progress") == 2


async def test_a_line_over_a_limit_waits(open_service: Any) -> None:
    """The caller's own limits hold for its batches, and cost no line."""
    limits = PrincipalLimits(max_concurrent=1)
    gate = Gate(quotas=Quotas(limits))
    client = await open_service(gate=gate, max_num_seqs=4)
    batch = await until(client, (await create(client, *(line(f"n{n}") for n in range(8))))["id"])
    assert batch["request_counts"] == {"total": 8, "completed": 8, "failed": 0}


async def test_a_line_has_a_day_whatever_the_limit_of_requests(open_service: Any) -> None:
    """The time that a request may take is for clients that wait for it."""
    gate = Gate(Bounds(max_wait_s=0.001, timeout_s=0.05))
    client = await open_service(gate=gate, max_num_seqs=1, step_s=0.01)
    batch = await until(client, (await create(client, *(line(f"n{n}") for n in range(6))))["id"])
    assert batch["request_counts"] == {"total": 6, "completed": 6, "failed": 0}


async def test_a_batch_that_fails_in_the_middle_keeps_what_is_done(
    open_service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await open_service(step_s=0.01, max_num_seqs=2)
    made = await create(client, *(line(f"n{n}") for n in range(100)))
    await until_done(client, made["id"], 3)

    def broken(*_: Any) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(run.RunningBatch, "_spawn", broken)
    batch = await until(client, made["id"])
    assert batch["status"] == "failed"
    assert "internal error" in batch["errors"]["data"][0]["message"]
    done = await content(client, batch["output_file_id"])
    rest = await content(client, batch["error_file_id"])
    assert len(done) >= 3
    ids = [each["custom_id"] for each in (*done, *rest)]
    assert sorted(ids) == sorted(f"n{n}" for n in range(100))
