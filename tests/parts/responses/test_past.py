"""What a request goes back to costs what is stored, once, and leaves the loop to others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from parts.responses import past, retrieval
from parts.responses.store.base import ResponseRecord
from parts.responses.store.sqlite import SqliteStore
from parts.responses.stored import store_of
from service import work
from service.runtime import Runtime
from service.store.sqlite import SqliteDatabase

Fixture = Callable[..., Any]

PATH = "/v1/responses"
ANSWER = "<|channel|>final<|message|>17.<|return|>"


class CountingDatabase(SqliteDatabase):
    """Counts how often each response is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    async def run(self, work: Any, *args: Any, **kwargs: Any) -> Any:
        if work.__name__ == "_read":
            self.reads[args[0]] += 1
        return await super().run(work, *args, **kwargs)


@pytest.fixture
async def database() -> AsyncIterator[CountingDatabase]:
    database = CountingDatabase()
    yield database
    await database.close()


@pytest.fixture
def runtime(make_runtime: Fixture, database: CountingDatabase) -> Runtime:
    made: Runtime = make_runtime(ANSWER, max_model_len=100_000)
    return replace(made, database=database)


@pytest.fixture
async def client(runtime: Runtime, make_client: Fixture) -> httpx2.AsyncClient:
    opened: httpx2.AsyncClient = await make_client(runtime)
    return opened


@pytest.fixture
def ask(client: httpx2.AsyncClient, body: Fixture) -> Fixture:
    async def send(**fields: Any) -> httpx2.Response:
        return await client.post(PATH, json=body(**fields))

    return send


async def chain(ask: Fixture, length: int, **first: Any) -> str:
    """So many responses, each after the one before; gives the last one's id."""
    fields = first
    for _ in range(length):
        id: str = (await ask(**fields)).json()["id"]
        fields = {"previous_response_id": id}
    return id


async def items_of(client: httpx2.AsyncClient, id: str) -> list[Any]:
    shown = await client.get(f"{PATH}/{id}/input_items", params={"limit": 100, "order": "asc"})
    items: list[Any] = shown.json()["data"]
    return items


async def test_a_record_is_read_once_however_many_of_its_items_are_named(
    ask: Fixture, client: httpx2.AsyncClient, database: CountingDatabase
) -> None:
    """1,900 references to a record of 160 kB took 16 s of CPU."""
    texts = [{"role": "user", "content": f"text {number}"} for number in range(90)]
    ids = [(await ask(input=texts)).json()["id"] for _ in range(2)]
    items = [item for id in ids for item in await items_of(client, id)]
    named = [{"type": "item_reference", "id": item["id"]} for item in items]
    database.reads.clear()
    whole = (await ask(input=[*texts, *texts], store=False)).json()["usage"]["input_tokens"]
    answer = await ask(input=named, store=False)
    assert answer.json()["usage"]["input_tokens"] == whole
    assert database.reads == dict.fromkeys(ids, 1)


async def test_earlier_responses_may_name_items_of_one_record_each(
    ask: Fixture, client: httpx2.AsyncClient, database: CountingDatabase
) -> None:
    first = (await ask(input="The only question.")).json()["id"]
    [item] = await items_of(client, first)
    named = {"input": [{"type": "item_reference", "id": item["id"]}]}
    second = (await ask(**named)).json()["id"]
    third = (await ask(**named, previous_response_id=second)).json()["id"]
    database.reads.clear()
    assert (await ask(**named, previous_response_id=third)).status_code == 200
    assert database.reads == dict.fromkeys((first, second, third), 1)


async def test_an_item_that_an_earlier_response_named_and_that_is_gone_is_told(
    ask: Fixture, client: httpx2.AsyncClient
) -> None:
    first = (await ask(input="The only question.")).json()["id"]
    [item] = await items_of(client, first)
    named = [{"type": "item_reference", "id": item["id"]}]
    second = (await ask(input=named)).json()["id"]
    await client.delete(f"{PATH}/{first}")
    refused = await ask(previous_response_id=second)
    assert refused.status_code == 404
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == ("previous_response_id", "item_not_found")
    assert item["id"] in error["message"]


@pytest.mark.parametrize("path", ["", "/input_tokens"])
async def test_a_chain_has_a_limit_of_links_that_names_the_field(
    ask: Fixture,
    client: httpx2.AsyncClient,
    body: Fixture,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    monkeypatch.setattr(past, "MAX_LINKS", 3)
    last = await chain(ask, 4)
    before = (await client.get(f"{PATH}/{last}")).json()["previous_response_id"]
    asked = body(previous_response_id=before)
    assert (await client.post(PATH + path, json=asked)).status_code == 200
    refused = await client.post(PATH + path, json=asked | {"previous_response_id": last})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == ("previous_response_id", "history_too_long")
    assert "3 responses" in error["message"]


@pytest.mark.parametrize(
    ("limit", "enough", "too_few"), [("MAX_ITEMS", 4, 3), ("MAX_CHARS", 12_000, 9_000)]
)
async def test_a_chain_has_a_limit_of_items_and_of_text(
    ask: Fixture, monkeypatch: pytest.MonkeyPatch, limit: str, enough: int, too_few: int
) -> None:
    last = await chain(ask, 1, input="word " * 1_000)
    last = (await ask(input="word " * 1_000, previous_response_id=last)).json()["id"]
    monkeypatch.setattr(past, limit, enough)
    assert (await ask(previous_response_id=last)).status_code == 200
    monkeypatch.setattr(past, limit, too_few)
    refused = await ask(previous_response_id=last)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "history_too_long"


class InstantStore(SqliteStore):
    """Gives what it has read before without leaving the loop."""

    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__(database)
        self._known: dict[str, ResponseRecord] = {}

    async def get(self, id: str, owner: str) -> ResponseRecord:
        if id not in self._known:
            self._known[id] = await super().get(id, owner)
        return self._known[id]


async def test_the_loop_has_a_turn_between_two_earlier_responses(
    ask: Fixture, database: CountingDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 links held up the loop for 0.7 s."""
    last = await chain(ask, 20)
    store = InstantStore(database)
    given = [{"id": "msg_1", "type": "message", "role": "user", "content": []}]
    await past.conversation_groups(store, last, given, "")
    monkeypatch.setattr(work, "_IN_LOOP_S", 1e-9)  # of each turn: one piece of work
    reading = asyncio.create_task(past.conversation_groups(store, last, given, ""))
    num_turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        num_turns += 1
    assert len(reading.result()) == 2 * 20 + 1
    assert num_turns >= 20


async def test_a_long_answer_is_replayed_in_parts(
    make_runtime: Fixture, make_client: Fixture, body: Fixture
) -> None:
    """131,072 tokens were written in one turn of the loop, which took 0.4 s."""
    runtime = make_runtime("<|channel|>final<|message|>" + "word " * 3_000 + "<|return|>")
    client = await make_client(runtime)
    id = (await client.post(PATH, json=body())).json()["id"]
    replayed = retrieval.follow(runtime, await store_of(runtime).get(id, ""), -1)
    counts = [part.count(b"event: response.output_text.delta") async for part in replayed]
    assert sum(counts) > 3_000
    assert max(counts) <= 1_024
