"""Responses that outlive their connection: followed, stopped, lost; on both stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from engines.base import EngineStats
from engines.errors import EngineDead
from service.api.responses import retrieval
from service.api.responses.background import end_background
from service.api.responses.retrieval import LEASE_S
from service.run.server import create_app
from service.runtime import Runtime
from service.store.base import ResponseStore, StoreBounds, StoreError
from service.store.redis import RedisStore
from service.store.sqlite import SqliteStore
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]
OpenStore = Callable[[], ResponseStore]

PATH = "/v1/responses"
ENDLESS = (200005, 17196, 200008, 24912, 220)  # a final message without an end


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.heavy)])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    """The store as each replica opens it for itself."""
    opened: list[ResponseStore] = []
    url = request.getfixturevalue("redis_url") if request.param == "redis" else None

    def open_another() -> ResponseStore:
        path = tmp_path / "responses.sqlite"
        opened.append(RedisStore(url) if url else SqliteStore(path))
        return opened[-1]

    yield open_another
    for store in opened:
        await store.close()


@pytest.fixture
async def replicas(
    make_runtime: Fixture, open_store: OpenStore
) -> AsyncIterator[tuple[Runtime, Runtime]]:
    """Two processes' worth of service over one store; both models never stop by themselves."""
    runtimes = []
    for _ in range(2):
        engine = FakeEngine(FakeOptions(script=ENDLESS, step_s=0.002))
        await engine.start()
        runtimes.append(replace(make_runtime(engine=engine), responses=open_store()))
    yield runtimes[0], runtimes[1]
    for runtime in runtimes:
        await runtime.engine.stop()
        await end_background(runtime, 5)


def client_of(runtime: Runtime) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(runtime)), base_url="http://s"
    )


async def written(client: httpx.AsyncClient, id: str) -> dict[str, Any]:
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
    following = retrieval.follow_record(there, record, -1)
    assert b"response.created" in await anext(following)
    await there.responses.delete(made["id"], "")
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


async def test_what_a_dead_server_left_is_failed(
    make_runtime: Fixture,
    tmp_path: Path,
    body: Fixture,
    typed_events: Fixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A restart must not leave a response in progress for ever."""
    now = [1_000_000.0]
    path, bounds = tmp_path / "responses.sqlite", StoreBounds(clock=lambda: now[0])
    engine = FakeEngine(FakeOptions(script=ENDLESS, step_s=0.002))
    await engine.start()
    dying = replace(make_runtime(engine=engine), responses=SqliteStore(path, bounds))
    client = client_of(dying)
    id = (await client.post(PATH, json=body(background=True))).json()["id"]
    await written(client, id)
    run = dying.background.pop(id)
    for task in asyncio.all_tasks():
        if task.get_name() == f"background {id}":
            task.cancel()  # as a killed process: nothing more is stored
            await asyncio.wait((task,))
    assert run.document is not None
    assert run.document["status"] == "failed"  # for who followed it in that process

    restarted = replace(make_runtime("unused"), responses=SqliteStore(path, bounds))
    client = client_of(restarted)
    now[0] += LEASE_S - 1
    assert (await client.get(f"{PATH}/{id}")).json()["status"] == "in_progress"
    monkeypatch.setattr(retrieval, "STOP_TIMEOUT_S", 0.01)
    stopping = await client.post(f"{PATH}/{id}/cancel")
    assert stopping.json()["status"] == "in_progress"  # nobody is there to stop it
    now[0] += 2
    failed = (await client.get(f"{PATH}/{id}")).json()
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "server_error"
    assert failed["output"][0]["status"] == "incomplete"
    events = typed_events((await client.get(f"{PATH}/{id}?stream=true")).text)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    await engine.stop()
    for runtime in (dying, restarted):
        await runtime.responses.close()


async def test_at_shutdown_a_run_stores_that_it_failed(
    replicas: tuple[Runtime, Runtime], body: Fixture
) -> None:
    here, there = (client_of(runtime) for runtime in replicas)
    id = (await here.post(PATH, json=body(background=True))).json()["id"]
    await written(here, id)
    assert replicas[0].lifecycle.num_running == 1  # draining waits for it
    await replicas[0].engine.stop()
    await end_background(replicas[0], 5)
    assert (await there.get(f"{PATH}/{id}")).json()["status"] == "failed"
    assert replicas[0].lifecycle.num_running == 0


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
    id = next(iter(runtime.background))
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


class BrokenStore(SqliteStore):
    """A disk that is full."""

    def _put(self, *_args: Any) -> None:
        raise StoreError("no space left")


async def test_without_a_store_answers_go_on_and_say_so(
    make_runtime: Fixture, make_client: Fixture, body: Fixture, typed_events: Fixture, hello: str
) -> None:
    client = await make_client(replace(make_runtime(hello), responses=BrokenStore()))
    whole = (await client.post(PATH, json=body())).json()
    assert (whole["status"], whole["store"]) == ("completed", False)
    streamed = await client.post(PATH, json=body(stream=True))
    assert typed_events(streamed.text)[-1]["response"]["store"] is False
    refused = await client.post(PATH, json=body(background=True))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_failed")
    assert "no space left" not in refused.text  # the log's, not the client's


async def test_none_is_begun_while_no_engine_answers(
    make_runtime: Fixture, open_store: OpenStore, body: Fixture
) -> None:
    """It would be a 200, and fail later: only what is refused at once is sent again."""

    class Restarting(FakeEngine):
        async def stats(self) -> EngineStats:
            raise EngineDead("restarting it in 0.5 s")

    engine = Restarting(FakeOptions(script=ENDLESS))
    await engine.start()
    runtime = replace(make_runtime(engine=engine), responses=open_store())
    refused = await client_of(runtime).post(PATH, json=body(background=True))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_dead")
    assert refused.headers["retry-after"] == "1"
    assert not runtime.background
    await engine.stop()
