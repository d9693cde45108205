"""Responses that outlive their connection and their worker: followed, stopped, continued; on both
stores."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engines.base import EngineStats
from engines.errors import EngineDead
from parts.responses import retrieval
from parts.responses.background import KIND, response_jobs, stored_pieces
from parts.responses.store.base import ResponseRecord
from parts.responses.store.redis import RedisStore
from parts.responses.store.sqlite import SqliteStore
from parts.responses.stored import store_of
from service.answer.saved_plan import restore
from service.jobs import redis, sqlite, worker
from service.jobs.base import MAX_DEATHS, kind_name
from service.jobs.worker import jobs_on
from service.run.server import create_app
from service.runtime import Runtime
from service.store.base import StoreError
from service.store.sqlite import Database, SqliteDatabase
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.service.conftest import open_redis

Fixture = Callable[..., Any]
OpenDatabase = Callable[[], Database]

PATH = "/v1/responses"
ENDLESS = (200005, 17196, 200008, 24912, 220)  # a final message without an end


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.heavy)])
async def open_database(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[OpenDatabase]:
    """The database as each replica opens it for itself."""
    opened: list[Database] = []
    url = request.getfixturevalue("redis_url") if request.param == "redis" else None
    if url:  # ids are counted from 1 in each test
        await flush(url)

    def open_another() -> Database:
        path = tmp_path / "responses.sqlite"
        opened.append(open_redis(url) if url else SqliteDatabase(path))
        return opened[-1]

    yield open_another
    for database in opened:
        await database.close()


async def flush(url: str) -> None:
    from redis.asyncio import Redis

    redis = Redis.from_url(url)
    await redis.flushall()
    await redis.aclose()


def on(runtime: Runtime, database: Database) -> Runtime:
    """The runtime with its own connection to a database."""
    return replace(runtime, database=database, jobs=jobs_on(database))


@pytest.fixture
async def open_replica(
    make_runtime: Fixture, open_database: OpenDatabase
) -> AsyncIterator[Callable[..., Awaitable[Runtime]]]:
    """One process's worth of service on the common database."""
    runtimes: list[Runtime] = []

    async def start(script: Sequence[int] = ENDLESS, **options: Any) -> Runtime:
        engine = FakeEngine(FakeOptions(script=tuple(script), step_s=0.002, **options))
        await engine.start()
        runtimes.append(on(make_runtime(engine=engine), open_database()))
        create_app(runtimes[-1])
        return runtimes[-1]

    yield start
    for runtime in runtimes:
        await runtime.jobs.close(5)
        await runtime.engine.stop()


@pytest.fixture
async def replicas(open_replica: Fixture) -> tuple[Runtime, Runtime]:
    """Two of them; both models never stop by themselves."""
    return await open_replica(), await open_replica()


def client_of(runtime: Runtime) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(create_app(runtime)), base_url="http://s"
    )


async def written(client: httpx2.AsyncClient, id: str) -> dict[str, Any]:
    """The response once it has some text."""
    async with asyncio.timeout(60):
        while not (seen := (await client.get(f"{PATH}/{id}")).json())["output"]:
            await asyncio.sleep(0.01)
    result: dict[str, Any] = seen
    return result


async def test_another_replica_reads_follows_and_stops_it(
    replicas: tuple[Runtime, Runtime], body: Fixture, typed_events: Fixture
) -> None:
    here, there = (client_of(runtime) for runtime in replicas)
    made = (await here.post(PATH, json=body(background=True))).json()
    assert (made["status"], made["output"]) == ("queued", [])
    seen = await written(there, made["id"])
    assert seen["status"] == "in_progress"
    assert seen["output"][0]["status"] == "in_progress"
    following = asyncio.create_task(there.get(f"{PATH}/{made['id']}?stream=true"))
    local = asyncio.create_task(here.get(f"{PATH}/{made['id']}?stream=true"))
    cancelled = (await there.post(f"{PATH}/{made['id']}/cancel")).json()
    assert cancelled["status"] == "cancelled"
    assert cancelled["output"][0]["status"] == "incomplete"
    events = typed_events((await following).text)
    assert events == typed_events((await local).text)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"] == cancelled
    text = "".join(event["delta"] for event in events if event["type"].endswith("text.delta"))
    assert text == cancelled["output"][0]["content"][0]["text"]
    assert (await replicas[0].engine.stats()).num_running == 0
    assert (await here.post(f"{PATH}/{made['id']}/cancel")).json() == cancelled


async def test_deleting_a_running_response_stops_it(
    replicas: tuple[Runtime, Runtime], body: Fixture
) -> None:
    here, there = (client_of(runtime) for runtime in replicas)
    made = (await here.post(PATH, json=body(background=True))).json()
    await written(here, made["id"])
    deleted = await there.delete(f"{PATH}/{made['id']}")
    assert deleted.json() == {"id": made["id"], "object": "response", "deleted": True}
    assert (await replicas[0].engine.stats()).num_running == 0
    for method in ("GET", "DELETE"):
        assert (await here.request(method, f"{PATH}/{made['id']}")).status_code == 404


async def test_a_follower_is_told_when_the_response_is_gone(
    replicas: tuple[Runtime, Runtime], body: Fixture
) -> None:
    made = (await client_of(replicas[0]).post(PATH, json=body(background=True))).json()
    there = replicas[1]
    record = await retrieval.read(there, made["id"], "")
    following = retrieval.follow(there, record)
    assert b"response.created" in await anext(following)
    await store_of(there).delete(made["id"], "")
    rest = [written async for written in following]
    assert rest[-1].startswith(b"event: error\n")
    assert b"response_not_found" in rest[-1]


async def test_it_is_no_previous_response_before_its_end(
    replicas: tuple[Runtime, Runtime], body: Fixture
) -> None:
    client = client_of(replicas[0])
    made = (await client.post(PATH, json=body(background=True))).json()
    refused = await client.post(PATH, json=body(previous_response_id=made["id"]))
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "previous_response_in_progress"


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
    assert text.startswith(before.json()["output"][-1]["content"][0]["text"] or "")
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


async def completed(client: httpx2.AsyncClient, id: str) -> dict[str, Any]:
    """The response once it is complete."""
    async with asyncio.timeout(60):
        while (seen := (await client.get(f"{PATH}/{id}")).json())["status"] != "completed":
            assert seen["status"] in ("queued", "in_progress"), seen
            await asyncio.sleep(0.01)
    result: dict[str, Any] = seen
    return result


async def test_what_an_earlier_release_left_unfinished_is_failed(
    replicas: tuple[Runtime, Runtime], body: Fixture
) -> None:
    """It has no job, and would be in progress for ever."""
    runtime = replicas[0]
    client = client_of(runtime)
    head = (await client.post(PATH, json=body(background=True))).json()
    await client.delete(f"{PATH}/{head['id']}")
    record = ResponseRecord(head["id"], "", json.dumps(head).encode(), b"[]", is_final=False)
    await store_of(runtime).put(record)
    await store_of(runtime).extend(head["id"], b'[["content","so far"]]')
    failed = (await client.get(f"{PATH}/{head['id']}")).json()
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert failed["output"][0]["status"] == "incomplete"
    assert (await client.post(f"{PATH}/{head['id']}/cancel")).json() == failed


async def test_one_that_nobody_runs_yet_is_cancelled_at_once(
    replicas: tuple[Runtime, Runtime], body: Fixture
) -> None:
    here, there = replicas
    here.jobs.start(lambda: 0)  # no room: it waits
    made = (await client_of(here).post(PATH, json=body(background=True))).json()
    assert (await client_of(there).get(f"{PATH}/{made['id']}")).json()["status"] == "queued"
    cancelled = (await client_of(there).post(f"{PATH}/{made['id']}/cancel")).json()
    assert (cancelled["status"], cancelled["output"]) == ("cancelled", [])
    assert not await here.jobs.store.has(made["id"])
    assert here.gate is not there.gate


async def test_a_caller_has_a_bounded_number_of_them(
    replicas: tuple[Runtime, Runtime], body: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "MAX_PER_TENANT", 1)
    monkeypatch.setattr(redis, "_PUT", redis._PUT.replace(">= 1024", ">= 1"))
    client = client_of(replicas[0])
    made = (await client.post(PATH, json=body(background=True))).json()
    refused = await client.post(PATH, json=body(background=True))
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert refused.headers["retry-after"] == "10"
    await client.post(f"{PATH}/{made['id']}/cancel")
    assert (await client.post(PATH, json=body(background=True))).status_code == 200


async def test_it_waits_behind_those_whose_clients_wait(
    replicas: tuple[Runtime, Runtime], body: Fixture
) -> None:
    runtime = replicas[0]
    await client_of(runtime).post(PATH, json=body(background=True))
    [run] = response_jobs(runtime).runs.values() or response_jobs(runtime)._prepared.values()
    assert run.generation.plan.engine_request(0).priority == 2**31 - 1


async def test_nothing_is_shown_that_is_not_stored(
    replicas: tuple[Runtime, Runtime], body: Fixture
) -> None:
    """Else a death of the worker would change what a client has read."""
    runtime = replicas[0]
    id = (await client_of(runtime).post(PATH, json=body(background=True))).json()["id"]
    following = retrieval.follow(runtime, await retrieval.read(runtime, id, ""))
    shown = b""
    while shown.count(b"output_text.delta\n") < 20:
        shown += await anext(following)
        stored = await stored_pieces(replicas[1], id)
        assert shown.count(b"output_text.delta\n") <= len(stored)
    await following.aclose()


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


async def test_a_client_that_leaves_a_background_stream_leaves_it_running(
    replicas: tuple[Runtime, Runtime], body: Fixture, serve: Fixture
) -> None:
    runtime = replicas[0]
    sdk = await serve(replace(runtime, engine=_Started(runtime.engine)))
    stream = await sdk.responses.create(
        model="gpt-oss-20b", input="Hi", background=True, stream=True
    )
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    id = next(iter(runtime.jobs.runs))
    rest = await sdk.responses.retrieve(id, stream=True, starting_after=event.sequence_number)
    async for following in rest:
        assert following.sequence_number == event.sequence_number + 1
        break
    await rest.close()
    assert (await sdk.responses.cancel(id)).status == "cancelled"


class _Started:
    """An engine that was started already."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    async def start(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class FullDatabase(SqliteDatabase):
    """A disk that is full: what is there can be read."""

    async def run(self, work: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(work, "__name__", "") == "_put":
            raise StoreError("no space left")
        return await super().run(work, *args, **kwargs)


async def test_without_a_store_answers_go_on_and_say_so(
    make_runtime: Fixture, make_client: Fixture, body: Fixture, typed_events: Fixture, hello: str
) -> None:
    client = await make_client(replace(make_runtime(hello), database=FullDatabase()))
    whole = (await client.post(PATH, json=body())).json()
    assert (whole["status"], whole["store"]) == ("completed", False)
    streamed = await client.post(PATH, json=body(stream=True))
    assert typed_events(streamed.text)[-1]["response"]["store"] is False
    refused = await client.post(PATH, json=body(background=True))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_failed")
    assert "no space left" not in refused.text  # the log's, not the client's


async def test_none_is_begun_while_no_engine_answers(
    make_runtime: Fixture, open_database: OpenDatabase, body: Fixture
) -> None:
    """It would be a 200, and fail later: only what is refused at once is sent again."""

    class Restarting(FakeEngine):
        async def stats(self) -> EngineStats:
            raise EngineDead("restarting it in 0.5 s")

    engine = Restarting(FakeOptions(script=ENDLESS))
    await engine.start()
    runtime = on(make_runtime(engine=engine), open_database())
    refused = await client_of(runtime).post(PATH, json=body(background=True))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_dead")
    assert refused.headers["retry-after"] == "1"
    assert not runtime.jobs.runs
    await engine.stop()
