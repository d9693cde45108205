"""What a response goes back to, as the prompt says it: the same as chat's messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from auth.authenticators import ApiKeys
from auth.base import Credentials, Principal
from engines.base import EngineRequest
from service.harmony import vocabulary
from service.jobs.worker import jobs_on
from service.runtime import Runtime
from service.store.sqlite import SqliteDatabase
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

PATH = "/v1/responses"
THINK = "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>Looking.<|end|><|start|>assistant"
CALL = THINK + PREAMBLE + "<|channel|>commentary to=functions.f json<|message|>{}<|call|>"
FINAL = THINK + "<|channel|>final<|message|>17.<|return|>"
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT_TOOL = {"type": "function", "function": {"name": "f"}}
TOOL = {"type": "function", "name": "f"}
USER = {"role": "user", "content": "What is it?"}


class Service:
    """Answers with the scripts in turn; shows the prompts it was asked to go on from."""

    def __init__(self, runtime: Runtime, client: httpx2.AsyncClient, asked: list[EngineRequest]):
        self.runtime = runtime
        self.client = client
        self._asked = asked

    async def answer(self, path: str = PATH, **body: Any) -> dict[str, Any]:
        response = await self.client.post(path, json={"model": "gpt-oss-20b", **body})
        assert response.status_code == 200, response.text
        result: dict[str, Any] = response.json()
        return result

    @property
    def prompt(self) -> tuple[int, ...]:
        return self._asked[-1].prompt_token_ids

    @property
    def prompt_text(self) -> str:
        ids = self.prompt
        return b"".join(map(vocabulary.decode_bytes, ids)).decode("utf-8", "replace")


@pytest.fixture
def serving(make_runtime: Fixture, make_client: Fixture, harmony_ids: Fixture) -> Fixture:
    async def start(*scripts: str, max_model_len: int = 4096) -> Service:
        asked: list[EngineRequest] = []

        def script(request: EngineRequest) -> Any:
            asked.append(request)
            return harmony_ids(scripts[(len(asked) - 1) % len(scripts)])

        engine = FakeEngine(FakeOptions(script=(1,), max_model_len=max_model_len), script)
        runtime = make_runtime(engine=engine)
        return Service(runtime, await make_client(runtime), asked)

    return start


async def test_a_tool_loop_by_reference_makes_chats_prompt(serving: Fixture) -> None:
    """vllm#27653, PR#28729: reasoning within the loop, the preamble before the call."""
    service = await serving(CALL, FINAL, FINAL)
    first = await service.answer(input=[USER], tools=[TOOL], instructions="Be brief.")
    call = first["output"][-1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "17"}
    await service.answer(
        input=[output], previous_response_id=first["id"], tools=[TOOL], instructions="Be brief."
    )
    by_reference = service.prompt
    assert service.prompt_text.count("Be brief.") == 1  # not the earlier response's
    assistant = {"role": "assistant", "content": "Looking.", "reasoning": "Think."}
    messages = [
        {"role": "system", "content": "Be brief."},
        USER,
        assistant | {"tool_calls": [CHAT_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "17"},
    ]
    chat = {"messages": messages, "tools": [CHAT_TOOL]}
    await service.answer("/v1/chat/completions", **chat)
    assert service.prompt == by_reference
    items = [USER, *first["output"], output]
    await service.answer(input=items, tools=[TOOL], instructions="Be brief.")
    assert service.prompt == by_reference


async def test_reasoning_is_dropped_after_the_final_answer(serving: Fixture) -> None:
    service = await serving(CALL, FINAL, FINAL)
    first = await service.answer(input=[USER], tools=[TOOL])
    call_id = first["output"][-1]["call_id"]
    output = {"type": "function_call_output", "call_id": call_id, "output": [
        {"type": "input_text", "text": "1"}, {"type": "input_text", "text": "7"}]}  # fmt: skip
    second = await service.answer(input=[output], previous_response_id=first["id"], tools=[TOOL])
    assert service.prompt_text.count("Think.") == 1
    await service.answer(input="And?", previous_response_id=second["id"], tools=[TOOL])
    text = service.prompt_text
    assert "Think." not in text
    order = [text.index(word) for word in ("What is it?", "Looking.", "to=functions.f", "And?")]
    assert order == sorted(order)


@pytest.mark.parametrize("effort", ["none", "low", "medium", "high", "max", None])
async def test_effort_means_the_same_as_on_chat(serving: Fixture, effort: str | None) -> None:
    """tt-inference-server#4672."""
    service = await serving(FINAL)
    await service.answer(input=[USER], reasoning={"effort": effort})
    prompt = service.prompt
    await service.answer("/v1/chat/completions", messages=[USER], reasoning_effort=effort)
    assert service.prompt == prompt


@pytest.mark.parametrize("script", [FINAL, CALL])
async def test_usage_is_chats(serving: Fixture, script: str) -> None:
    """vllm#23007: counts are real, and the same on both routes for the same generation."""
    service = await serving(script)
    chat = {"messages": [USER], "tools": [CHAT_TOOL]}
    expected = (await service.answer("/v1/chat/completions", **chat))["usage"]
    again = (await service.answer("/v1/chat/completions", **chat))["usage"]
    usage = (await service.answer(input=[USER], tools=[TOOL]))["usage"]
    assert usage == {
        "input_tokens": expected["prompt_tokens"],
        "input_tokens_details": {**again["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": expected["completion_tokens"],
        "output_tokens_details": expected["completion_tokens_details"],
        "total_tokens": expected["total_tokens"],
    }
    assert usage["input_tokens_details"]["cached_tokens"] > 0


async def test_two_answers_in_a_row_stay_two(serving: Fixture) -> None:
    service = await serving(FINAL)
    items = [
        USER,
        {"role": "assistant", "content": "One."},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Two."}]},
        {"type": "message", "role": "assistant", "content": "Pre.", "phase": "final_answer"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": ""},
        {"role": "developer", "content": "Now answer."},
    ]
    await service.answer(input=items, tools=[TOOL])
    assert service.prompt.count(vocabulary.CHANNEL) == 5  # three answers, a call and its result


async def test_truncation_drops_the_oldest_and_what_hangs_on_it(serving: Fixture) -> None:
    service = await serving(FINAL, max_model_len=256)
    old = [
        {"role": "user", "content": "old " * 100},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "old " * 150},
        {"role": "assistant", "content": "kept"},
        {"role": "user", "content": "newest"},
    ]
    refused = await service.client.post(PATH, json={"model": "gpt-oss-20b", "input": old})
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    cut = await service.answer(
        input=old, truncation="auto", instructions="stay", max_output_tokens=60
    )
    assert cut["truncation"] == "auto"
    assert "old" not in service.prompt_text
    for word in ("kept", "newest", "stay"):
        assert word in service.prompt_text
    items = (await service.client.get(f"{PATH}/{cut['id']}/input_items")).json()
    assert len(items["data"]) == 5  # the prompt is shortened, not the conversation
    await service.answer(input=old[:1] + old[3:], truncation="auto", max_output_tokens=60)
    assert "kept" in service.prompt_text
    newest = {"role": "user", "content": "new " * 300}
    still = {"model": "gpt-oss-20b", "input": [*old, newest], "truncation": "auto"}
    assert (await service.client.post(PATH, json=still)).status_code == 400


async def test_one_key_does_not_see_anothers_responses(
    make_runtime: Fixture, make_client: Fixture, body: Fixture, hello: str
) -> None:
    client = await make_client(make_runtime(hello, authenticator=ApiKeys(["ann", "bob"])))
    ann, bob = ({"Authorization": f"Bearer {name}"} for name in ("ann", "bob"))
    made = (await client.post(PATH, json=body(), headers=ann)).json()
    url = f"{PATH}/{made['id']}"
    for method, path in (
        ("GET", url),
        ("DELETE", url),
        ("POST", f"{url}/cancel"),
        ("GET", f"{url}/input_items"),
    ):
        assert (await client.request(method, path, headers=bob)).status_code == 404
    for changes in (
        {"previous_response_id": made["id"]},
        {"input": [{"type": "item_reference", "id": made["output"][0]["id"]}]},
    ):
        refused = await client.post(PATH, json=body(**changes), headers=bob)
        assert refused.status_code in (400, 404)
    assert (await client.get(url, headers=ann)).json() == made


class Keys:
    """Keys by their owners' names; `ann` has two, one after the other."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        return Principal(id=f"key-{credentials.value}", tenant_id="acme")


async def test_a_tenant_keeps_its_responses_when_a_key_is_rotated(
    make_runtime: Fixture, make_client: Fixture, body: Fixture, hello: str
) -> None:
    client = await make_client(make_runtime(hello, authenticator=Keys()))
    made = (await client.post(PATH, json=body(), headers={"X-API-Key": "old"})).json()
    new = {"X-API-Key": "new"}
    assert (await client.get(f"{PATH}/{made['id']}", headers=new)).json() == made
    goes_on = body(previous_response_id=made["id"])
    assert (await client.post(PATH, json=goes_on, headers=new)).status_code == 200


async def test_no_answer_says_it_is_stored_where_storing_does_not_last(
    make_runtime: Fixture, make_client: Fixture, body: Fixture, hello: str, tmp_path: Path
) -> None:
    """In memory it can be read and gone on from, for as long as the server lives."""
    path = tmp_path / "responses.sqlite"
    path.write_text("no database, and long enough to be taken for one " * 9)
    database = SqliteDatabase(path, can_fall_back=True)
    runtime = replace(
        make_runtime(hello),
        database=database,
        jobs=jobs_on(database),
    )
    client = await make_client(runtime)
    made = (await client.post(PATH, json=body(store=True))).json()
    assert made["store"] is False
    assert (await client.get(f"{PATH}/{made['id']}")).json() == made
    streamed = (await client.post(PATH, json=body(stream=True))).text
    assert '"store":true' not in streamed
    later = (await client.post(PATH, json=body(background=True))).json()
    assert later["store"] is False
    async with asyncio.timeout(60):
        while (await client.get(f"{PATH}/{later['id']}")).json()["status"] != "completed":
            await asyncio.sleep(0.01)
    await runtime.jobs.close(5)
    await database.close()


async def test_a_broken_chain_names_the_missing_link(serving: Fixture) -> None:
    service = await serving(FINAL)
    first = await service.answer(input=[USER])
    second = await service.answer(input="Go on.", previous_response_id=first["id"])
    assert (await service.client.delete(f"{PATH}/{first['id']}")).status_code == 200
    body = {"model": "gpt-oss-20b", "input": "And?", "previous_response_id": second["id"]}
    error = (await service.client.post(PATH, json=body)).json()["error"]
    assert error["code"] == "previous_response_not_found"
    assert first["id"] in error["message"]
