"""Background responses: followed, stopped, bounded, shown once stored; on both stores."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from engines.base import LOWEST_PRIORITY, EngineStats
from engines.errors import EngineDead
from parts.responses import retrieval
from parts.responses.background import response_jobs, stored_pieces
from parts.responses.stored import store_of
from service.jobs import redis, sqlite
from service.runtime import Runtime
from service.store.base import StoreError
from service.store.sqlite import SqliteDatabase
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.parts.responses.replicas import (
    ENDLESS,
    PATH,
    Fixture,
    OpenDatabase,
    client_of,
    on,
    written,
)


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
    assert run.generation.plan.engine_request(0).priority == LOWEST_PRIORITY


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


async def test_one_that_fails_counts_as_a_failed_answer(
    open_replica: Fixture, body: Fixture
) -> None:
    client = client_of(await open_replica(fail_at=4))
    made = (await client.post(PATH, json=body(background=True))).json()
    followed = await client.get(f"{PATH}/{made['id']}?stream=true")
    assert "response.failed" in followed.text
    page = (await client.get("/metrics")).text
    assert f'harmonium_answers_total{{result="ok",route="{PATH}"}} 1.0' in page  # it was taken
    assert f'harmonium_answers_total{{result="error",route="{PATH}"}} 1.0' in page


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
