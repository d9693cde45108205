"""Conversations: the real SDK's calls, what the model reads of them, and changes at once."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest

from auth.base import Credentials, Principal
from parts.responses.conversations import log
from parts.responses.stored import store_of
from service.runtime import Runtime
from tests.parts.responses.replicas import PATH, client_of, completed

Fixture = Callable[..., Any]

MODEL = "gpt-oss-20b"
PLACE = "/v1/conversations"
FINAL = "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final<|message|>"
QUESTION: Any = {"type": "message", "role": "user", "content": "What is it?"}


def said(items: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Of each message, by whom it is and its text."""
    return [(i["role"], i["content"][0]["text"]) for i in items if i["type"] == "message"]


async def items_of(client: httpx2.AsyncClient, id: str) -> list[dict[str, Any]]:
    page = await client.get(f"{PLACE}/{id}/items", params={"order": "asc", "limit": 100})
    items: list[dict[str, Any]] = page.json()["data"]
    return items


async def begun(client: httpx2.AsyncClient, **fields: Any) -> str:
    id: str = (await client.post(PLACE, json=fields)).json()["id"]
    return id


async def test_the_sdk_keeps_a_conversation(
    serve: Fixture, make_runtime: Fixture, hello: str
) -> None:
    client: openai.AsyncOpenAI = await serve(make_runtime(hello))
    made = await client.conversations.create(items=[QUESTION], metadata={"a": "b"})
    assert (made.object, made.metadata) == ("conversation", {"a": "b"})
    assert await client.conversations.retrieve(made.id) == made
    changed = await client.conversations.update(made.id, metadata={"c": "d"})
    assert changed.metadata == {"c": "d"}
    assert await client.conversations.retrieve(made.id) == changed
    answer = await client.responses.create(model=MODEL, input="And?", conversation=made.id)
    assert answer.conversation is not None
    assert answer.conversation.id == made.id
    assert (await client.responses.retrieve(answer.id)).conversation == answer.conversation
    listed = await client.conversations.items.list(made.id, order="asc")
    kinds = ["message", "message", "reasoning", "message"]
    assert [item.type for item in listed.data] == kinds
    assert [item.id for item in listed.data][2:] == [item.id for item in answer.output]
    pages = client.conversations.items.list(made.id, order="desc", limit=3)
    assert [item.id async for item in pages] == [item.id for item in listed.data][::-1]
    added = await client.conversations.items.create(made.id, items=[QUESTION, QUESTION])
    assert [item.type for item in added.data] == ["message", "message"]
    one = await client.conversations.items.retrieve(added.data[0].id, conversation_id=made.id)
    assert one == added.data[0]
    assert await client.conversations.items.delete(one.id, conversation_id=made.id) == changed
    ids = [item.id async for item in client.conversations.items.list(made.id)]
    assert one.id not in ids
    assert len(ids) == 5
    gone = await client.conversations.delete(made.id)
    assert (gone.object, gone.deleted) == ("conversation.deleted", True)
    for lost in (
        client.conversations.retrieve(made.id),
        client.conversations.delete(made.id),
        client.conversations.items.list(made.id),
        client.responses.create(model=MODEL, input="And?", conversation=made.id),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            await lost
        assert caught.value.code == "conversation_not_found"


@pytest.fixture
async def client(make_client: Fixture, make_runtime: Fixture) -> httpx2.AsyncClient:
    made: httpx2.AsyncClient = await make_client(make_runtime(FINAL + "17.<|return|>"))
    return made


async def test_the_model_reads_what_it_would_after_the_responses_themselves(
    client: httpx2.AsyncClient, body: Fixture
) -> None:
    id = await begun(client)
    last = None
    for text in ("One.", "Two.", "Three."):
        made = await client.post(PATH, json=body(input=text, conversation={"id": id}))
        plain = await client.post(PATH, json=body(input=text, previous_response_id=last))
        last = plain.json()["id"]
        assert made.json()["usage"]["input_tokens"] == plain.json()["usage"]["input_tokens"]
    asked = body(input="Four.")
    counts = [
        (await client.post(f"{PATH}/input_tokens", json=asked | field)).json()["input_tokens"]
        for field in ({"conversation": id}, {"previous_response_id": last})
    ]
    assert counts[0] == counts[1] > 3 * 10
    first = (await items_of(client, id))[0]
    await client.delete(f"{PLACE}/{id}/items/{first['id']}")
    fewer = await client.post(f"{PATH}/input_tokens", json=asked | {"conversation": id})
    assert fewer.json()["input_tokens"] < counts[0]


async def test_a_stream_an_unstored_response_and_a_reference_are_of_the_conversation(
    client: httpx2.AsyncClient, body: Fixture
) -> None:
    id = await begun(client, items=[QUESTION])
    [first] = await items_of(client, id)
    reference = {"type": "item_reference", "id": first["id"]}
    asked = body(input=[reference], conversation=id, stream=True, store=False)
    events = (await client.post(PATH, json=asked)).text
    assert '"response.completed"' in events
    assert json.loads(events.split("data: ")[1].split("\n")[0])["response"]["conversation"] == {
        "id": id
    }
    items = await items_of(client, id)
    assert [item["type"] for item in items] == ["message", "reasoning", "message"]


@pytest.mark.parametrize(
    ("path", "fields", "param", "code"),
    [
        (PATH, {"conversation": "conv_1"}, "conversation", "conversation_not_found"),
        (f"{PATH}/input_tokens", {"conversation": "conv_1"}, "conversation", None),
        (PATH, {"conversation": "", "input": "x"}, "conversation", None),
        (PATH, {"conversation": {"id": 1}}, "conversation.id", None),
        (PATH, {"conversation": 1}, "conversation", None),
        (PATH, {"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation", None),
        (PLACE, {"items": [QUESTION] * 21}, "items", None),
        (PLACE, {"items": [QUESTION | {"id": "m"}] * 2}, "items[1].id", "duplicate_id"),
        (PLACE, {"items": [{"role": "user", "content": [{"type": "input_image"}]}]}, None, None),
        (PLACE, {"metadata": {"a": "b" * 513}}, "metadata.a", None),
        (PLACE, {"item": []}, "item", None),
        (f"{PLACE}/conv_1", {"metadata": {}}, "conversation_id", "conversation_not_found"),
    ],
)
async def test_what_cannot_be_is_named(
    client: httpx2.AsyncClient,
    path: str,
    fields: dict[str, Any],
    param: str | None,
    code: str | None,
) -> None:
    wanted = {"model": MODEL, "input": "x"} if path.startswith(PATH) else {}
    refused = await client.post(path, json=wanted | fields)
    assert refused.status_code in (400, 404), refused.text
    error = refused.json()["error"]
    assert param is None or error["param"] == param
    assert code is None or error["code"] == code


async def test_a_conversation_is_no_response_and_a_response_no_conversation(
    client: httpx2.AsyncClient, body: Fixture
) -> None:
    id = await begun(client, items=[QUESTION])
    made = (await client.post(PATH, json=body())).json()["id"]
    for path in (f"{PATH}/{id}", f"{PATH}/{id}/input_items", f"{PLACE}/{made}"):
        assert (await client.get(path)).status_code == 404
    assert (await client.delete(f"{PATH}/{id}")).status_code == 404
    assert (await client.delete(f"{PLACE}/{made}")).status_code == 404
    refused = await client.post(PATH, json=body(previous_response_id=id))
    assert refused.json()["error"]["code"] == "previous_response_not_found"
    assert len(await items_of(client, id)) == 1
    assert (await client.get(f"{PLACE}/{id}/items/msg_1")).json()["error"]["code"] == (
        "item_not_found"
    )


class ByValue:
    """A key's value is its tenant."""

    async def authenticate(self, credentials: Credentials) -> Principal:
        return Principal(id=credentials.value, tenant_id=credentials.value)


async def test_another_tenants_conversation_is_as_if_there_were_none(
    make_client: Fixture, make_runtime: Fixture, body: Fixture, hello: str
) -> None:
    client = await make_client(make_runtime(hello, authenticator=ByValue()))
    ann, bob = ({"Authorization": f"Bearer {name}"} for name in ("ann", "bob"))
    id = (await client.post(PLACE, json={"items": [QUESTION]}, headers=ann)).json()["id"]
    item = (await client.get(f"{PLACE}/{id}/items", headers=ann)).json()["first_id"]
    requests: list[tuple[str, str, Any]] = [
        ("GET", f"{PLACE}/%s", None),
        ("POST", f"{PLACE}/%s", {"metadata": {}}),
        ("GET", f"{PLACE}/%s/items", None),
        ("POST", f"{PLACE}/%s/items", {"items": [QUESTION]}),
        ("GET", f"{PLACE}/%s/items/{item}", None),
        ("DELETE", f"{PLACE}/%s/items/{item}", None),
        ("DELETE", f"{PLACE}/%s", None),
    ]
    for method, path, sent in requests:
        theirs, nobodys = [
            await client.request(method, path % named, json=sent, headers=bob)
            for named in (id, "conv_0")
        ]
        assert theirs.status_code == nobodys.status_code == 404
        assert theirs.text.replace(id, "conv_0") == nobodys.text
    refused = await client.post(PATH, json=body(conversation=id), headers=bob)
    assert refused.status_code == 404
    assert (await client.get(f"{PLACE}/{id}/items", headers=ann)).json()["first_id"] == item


async def test_a_full_conversation_takes_no_more(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await begun(client, items=[QUESTION])
    monkeypatch.setattr(log, "MAX_CHANGES", 2)
    for status in (200, 400):
        answer = await client.post(f"{PLACE}/{id}/items", json={"items": [QUESTION]})
        assert answer.status_code == status
    assert answer.json()["error"]["code"] == "history_too_long"
    assert len(await items_of(client, id)) == 2


@pytest.fixture
async def pair(open_replica: Fixture, harmony_ids: Fixture) -> tuple[Runtime, Runtime]:
    """Two replicas on one database, each of which says its own word."""
    here, there = [
        await open_replica(harmony_ids(f"{FINAL}{word}.<|return|>")) for word in ("Here", "There")
    ]
    return here, replace(there, new_id=lambda: uuid.uuid4().hex)  # `here` counts


async def test_two_responses_at_once_each_add_their_turn_whole(
    pair: tuple[Runtime, Runtime], body: Fixture
) -> None:
    here, there = map(client_of, pair)
    id = await begun(here, items=[QUESTION])
    asked = [
        client.post(PATH, json=body(input=f"{word}?", conversation=id))
        for client, word in [(here, "Here"), (there, "There")] * 4
    ]
    changed = there.post(f"{PLACE}/{id}", json={"metadata": {"a": "b"}})
    answers = await asyncio.gather(*asked, changed)
    assert {answer.status_code for answer in answers} == {200}
    turns = said(await items_of(there, id))[1:]
    assert len(turns) == 16
    for question, answer in zip(turns[::2], turns[1::2], strict=True):
        word = answer[1].rstrip(".")
        assert (question, answer) == (("user", f"{word}?"), ("assistant", f"{word}."))
    assert (await here.get(f"{PLACE}/{id}")).json()["metadata"] == {"a": "b"}


async def test_a_response_in_the_background_adds_its_turn_once(
    pair: tuple[Runtime, Runtime], body: Fixture
) -> None:
    here, there = map(client_of, pair)
    id = await begun(here)
    made = (await here.post(PATH, json=body(background=True, conversation=id))).json()
    done = await completed(there, made["id"])
    assert done["conversation"] == {"id": id}
    # A run that continues a killed worker's does this again.
    record = await store_of(pair[1]).get(made["id"], "")
    await log.add_turn(pair[1], done, record.input)
    assert said(await items_of(there, id)) == [("user", "Hello!"), ("assistant", "Here.")]


async def test_a_response_that_fails_or_outlives_its_conversation_adds_nothing(
    open_replica: Fixture, harmony_ids: Fixture, body: Fixture
) -> None:
    runtime = await open_replica()  # which never stops
    client = client_of(runtime)
    id = await begun(client)
    made = (await client.post(PATH, json=body(background=True, conversation=id))).json()
    await client.post(f"{PATH}/{made['id']}/cancel")
    assert await items_of(client, id) == []
    asked = body(background=True, conversation=id, max_output_tokens=400)
    made = (await client.post(PATH, json=asked)).json()
    assert (await client.delete(f"{PLACE}/{id}")).status_code == 200
    async with asyncio.timeout(60):
        while (seen := (await client.get(f"{PATH}/{made['id']}")).json())["status"] != "incomplete":
            await asyncio.sleep(0.01)
    assert seen["conversation"] == {"id": id}
    assert (await client.get(f"{PLACE}/{id}")).status_code == 404
