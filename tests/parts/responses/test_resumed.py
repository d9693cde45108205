"""Background responses whose worker dies or stops: another one continues them; on both stores."""

from __future__ import annotations

import asyncio
import json
from dataclasses import fields
from typing import Any

import pytest

from parts.responses import retrieval
from parts.responses.background import KIND, response_jobs
from parts.responses.store.base import ResponseRecord
from parts.responses.store.redis import RedisStore
from parts.responses.store.sqlite import SqliteStore
from parts.responses.stored import store_of
from service.answer.saved_plan import restore
from service.jobs import redis, sqlite, worker
from service.jobs.base import MAX_DEATHS, kind_name
from service.runtime import Runtime
from service.store.base import StoreError
from tests.parts.responses.replicas import (
    PATH,
    Fixture,
    client_of,
    completed,
    written,
)


def kill(runtime: Runtime, id: str) -> None:
    """End the process's part in a job as SIGKILL does: nothing more is stored or renewed."""
    for task in asyncio.all_tasks():
        if task.get_name() in (f"job {id}", "jobs") and task in (
            *runtime.jobs._tasks,
            runtime.jobs._working,
        ):
            task.cancel()
    runtime.jobs.runs.clear()
    runtime.jobs._tasks.clear()


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of a fifth of a second."""
    for module in (sqlite, worker):
        monkeypatch.setattr(module, "LEASE_S", 0.2)
    monkeypatch.setattr(worker, "RENEW_S", 0.06)
    monkeypatch.setattr(worker, "LOOK_S", 0.02)
    for name in ("_PUT", "_CLAIM", "_RENEW"):
        monkeypatch.setattr(redis, name, getattr(redis, name).replace("now + 10.0", "now + 0.2"))


LONG = "<|channel|>analysis<|message|>Think <|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.usefixtures("short_lease")
async def test_the_response_of_a_killed_worker_is_completed_by_another(
    open_replica: Fixture, harmony_ids: Fixture, body: Fixture, typed_events: Fixture
) -> None:
    """Events of both halves are one stream: no number twice, no text twice or lost."""
    script = harmony_ids(LONG + "Grüße, 👩‍🚀! " * 40 + "<|return|>")
    dying, other = await open_replica(script), await open_replica(script)
    first, second = client_of(dying), client_of(other)
    id = (await first.post(PATH, json=body(background=True, stream=False))).json()["id"]
    await written(second, id)
    before = await second.get(f"{PATH}/{id}")
    kill(dying, id)
    other.jobs.start(lambda: 8)
    events = typed_events((await second.get(f"{PATH}/{id}?stream=true")).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = events[-1]["response"]
    assert final["status"] == "completed"
    text = final["output"][1]["content"][0]["text"]
    assert text == "Grüße, 👩‍🚀! " * 40
    shown = before.json()["output"]
    written_on = final["output"][len(shown) - 1]["content"][0]["text"]
    assert written_on.startswith(shown[-1]["content"][0]["text"])
    deltas = [event["delta"] for event in events if event["type"].endswith("output_text.delta")]
    assert "".join(deltas) == text
    assert final["usage"]["output_tokens"] == len(script)
    assert 0 < final["usage"]["output_tokens_details"]["reasoning_tokens"] < len(script)
    later = typed_events((await second.get(f"{PATH}/{id}?stream=true&starting_after=7")).text)
    assert later == events[8:]
    assert not await other.jobs.store.has(id)


@pytest.mark.usefixtures("short_lease")
async def test_a_follower_elsewhere_reads_on_across_the_death(
    open_replica: Fixture, harmony_ids: Fixture, body: Fixture, typed_events: Fixture
) -> None:
    script = harmony_ids("<|channel|>final<|message|>" + "word " * 300 + "<|return|>")
    dying, other = await open_replica(script), await open_replica(script)
    id = (await client_of(dying).post(PATH, json=body(background=True))).json()["id"]
    await written(client_of(other), id)
    following = asyncio.create_task(client_of(other).get(f"{PATH}/{id}?stream=true"))
    await asyncio.sleep(0)
    kill(dying, id)
    other.jobs.start(lambda: 8)
    events = typed_events((await following).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "word " * 300


async def test_a_worker_that_comes_back_after_its_lease_writes_nothing_more(
    open_replica: Fixture, body: Fixture
) -> None:
    """It was stopped for a while (SIGSTOP, a paused machine), and another has its job."""
    late, other = await open_replica(), await open_replica()
    id = (await client_of(late).post(PATH, json=body(background=True))).json()["id"]
    await written(client_of(other), id)
    [run] = late.jobs.runs.values()
    assert await late.jobs.store.finish(id, run.claim.fence, 0)
    claim = await other.jobs.store.claim(id, "another")
    assert claim is not None
    assert await store_of(other).extend(id, b"", fence=claim.fence)
    stored = await store_of(other).pieces(id)
    async with asyncio.timeout(60):
        while late.jobs.runs:
            await asyncio.sleep(0.01)
    assert (await late.engine.stats()).num_running == 0
    assert await store_of(other).pieces(id) == stored
    assert not (await retrieval.read(other, id, "")).is_final


async def test_an_answer_of_the_store_that_is_lost_stores_nothing_twice(
    open_replica: Fixture,
    harmony_ids: Fixture,
    body: Fixture,
    typed_events: Fixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was to be stored is there, and its writer was told of a time-out."""
    num_lost = 0

    def losing(extend: Fixture) -> Fixture:
        async def lose(*args: Any, **named: Any) -> bool:
            nonlocal num_lost
            await extend(*args, **named)
            num_lost += 1
            raise StoreError("timed out")

        return lose

    for store in (RedisStore, SqliteStore):
        monkeypatch.setattr(store, "extend", losing(store.extend))
    text = "Grüße, 👩‍🚀! " * 40
    script = harmony_ids(LONG + text + "<|return|>")
    here, there = await open_replica(script), await open_replica(script)
    made = (await client_of(here).post(PATH, json=body(background=True))).json()
    events = typed_events((await client_of(there).get(f"{PATH}/{made['id']}?stream=true")).text)
    assert num_lost > 1
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = [event["delta"] for event in events if event["type"].endswith("output_text.delta")]
    assert "".join(deltas) == events[-1]["response"]["output"][1]["content"][0]["text"] == text


@pytest.mark.usefixtures("short_lease")
async def test_what_kills_its_worker_twice_ends_with_an_error(
    open_replica: Fixture, body: Fixture, typed_events: Fixture
) -> None:
    first = await open_replica()
    client = client_of(first)
    id = (await client.post(PATH, json=body(background=True))).json()["id"]
    await written(client, id)
    kill(first, id)
    for _ in range(MAX_DEATHS - 1):
        doomed = await open_replica()
        async with asyncio.timeout(60):
            while (claim := await doomed.jobs.store.claim(id, "doomed")) is None:
                await asyncio.sleep(0.02)
        assert claim.deaths < MAX_DEATHS
    last = await open_replica()
    client = client_of(last)
    last.jobs.start(lambda: 8)
    events = typed_events((await client.get(f"{PATH}/{id}?stream=true")).text)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    failed = (await client.get(f"{PATH}/{id}")).json()
    assert f"ended unexpectedly {MAX_DEATHS} times" in failed["error"]["message"]
    assert failed["output"][0]["content"][0]["text"], "what was written is not lost"
    assert (await last.engine.stats()).num_running == 0


async def test_a_graceful_stop_hands_it_to_another_worker_at_once(
    open_replica: Fixture, harmony_ids: Fixture, body: Fixture
) -> None:
    """No lease is waited for: it is the usual ten seconds here."""
    script = harmony_ids("<|channel|>final<|message|>" + "word " * 200 + "<|return|>")
    stopping, other = await open_replica(script), await open_replica(script)
    id = (await client_of(stopping).post(PATH, json=body(background=True))).json()["id"]
    await written(client_of(other), id)
    following = retrieval.follow(stopping, await retrieval.read(stopping, id, ""))
    assert b"response.created" in await anext(following)
    await asyncio.gather(stopping.lifecycle.drain(60), stopping.jobs.release())
    assert stopping.lifecycle.num_running == 0
    assert not stopping.jobs.runs
    rest = [written async for written in following]
    assert b"with starting_after" in rest[-1]
    await stopping.engine.stop()
    assert (await other.jobs.store.due((kind_name(KIND, other.model.root),), 1)).claimable == (
        (id, 0),
    )
    await other.jobs._look()
    done = await completed(client_of(other), id)
    assert done["output"][0]["content"][0]["text"] == "word " * 200
    counts = [await counted(runtime) for runtime in (stopping, other)]
    assert counts == [0, done["usage"]["output_tokens"]]  # once, where it ended


async def counted(runtime: Runtime) -> float:
    """Generated tokens that the metrics have counted."""
    page = (await runtime.metrics.render(runtime.engine)).decode()
    name = "harmonium_completion_tokens_total{"
    values = [line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith(name)]
    return sum(map(float, values))


async def unfinished(runtime: Runtime, body: Fixture, **fields: Any) -> dict[str, Any]:
    """A response in the store that has neither an end nor a job."""
    client = client_of(runtime)
    head: dict[str, Any] = (await client.post(PATH, json=body(background=True))).json()
    await client.delete(f"{PATH}/{head['id']}")
    document = json.dumps(head).encode()
    await store_of(runtime).put(
        ResponseRecord(head["id"], "", document, b"[]", is_final=False, **fields)
    )
    return head


async def test_what_an_earlier_release_left_unfinished_is_failed(
    replicas: tuple[Runtime, Runtime], body: Fixture
) -> None:
    """It has no job, and would be in progress for ever."""
    runtime = replicas[0]
    client = client_of(runtime)
    head = await unfinished(runtime, body)
    await store_of(runtime).extend(head["id"], b'[["content","so far"]]')
    failed = (await client.get(f"{PATH}/{head['id']}")).json()
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert failed["output"][0]["status"] == "incomplete"
    assert (await client.post(f"{PATH}/{head['id']}/cancel")).json() == failed


@pytest.mark.parametrize(("beat_s", "status"), [(1, "queued"), (20, "failed")])
async def test_a_server_without_jobs_may_be_writing_it(
    replicas: tuple[Runtime, Runtime], body: Fixture, beat_s: int, status: str
) -> None:
    """In a rolling update a pod of the earlier release finishes what it began, unless it died."""
    runtime = replicas[0]
    head = await unfinished(runtime, body, beat_at=runtime.clock() - beat_s)
    shown = (await client_of(runtime).get(f"{PATH}/{head['id']}")).json()
    assert shown["status"] == status


async def test_a_response_with_a_grammar_and_a_key_is_continued_by_another(
    open_replica: Fixture, body: Fixture
) -> None:
    """All that the plan has comes back from the row of the job."""
    here, there = await open_replica(), await open_replica()
    client = client_of(here)
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    asked = body(background=True, text={"format": schema}, tools=[], max_output_tokens=9)
    id = (await client.post(PATH, json=asked, headers={"X-Request-Timeout-Ms": "60000"})).json()[
        "id"
    ]
    [(_, run)] = here.jobs.runs.items()
    first = response_jobs(here)._prepared.get(id) or response_jobs(here).runs[id]
    plan = first.generation.plan
    again = restore(run.claim.job.input, there.format, None, lambda limit_s: limit_s)
    assert again.engine_request(0) == plan.engine_request(0)
    assert again.context.id == plan.context.id
    assert again.context.deadline is not None
    assert again.context.deadline.timeout_s == 60
    for field in fields(plan):
        if field.name != "context":
            assert getattr(again, field.name) == getattr(plan, field.name), field.name
