"""The real `openai` SDK against a real server: what it sends is served, what it gets it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import openai
import pydantic
import pytest
from openai import AsyncOpenAI as Client
from openai.types import responses as sdk

Fixture = Callable[..., Any]

MODEL = "gpt-oss-20b"
EVENT_TYPES = {
    get_args(cls.model_fields["type"].annotation)[0]: cls
    for cls in get_args(get_args(sdk.ResponseStreamEvent)[0])
}


@pytest.fixture
async def client(serve: Fixture, make_runtime: Fixture, hello: str) -> Client:
    result: Client = await serve(make_runtime(hello))
    return result


async def test_a_response_is_created_retrieved_listed_and_deleted(client: Client) -> None:
    made = await client.responses.create(model=MODEL, input="Hello!", metadata={"a": "b"})
    assert made.output_text == "Grüße, 👩‍🚀!\n"
    assert (made.status, made.error, made.incomplete_details) == ("completed", None, None)
    assert made.usage is not None
    assert made.usage.output_tokens_details.reasoning_tokens == 5
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens
    reasoning = made.output[0]
    assert isinstance(reasoning, sdk.ResponseReasoningItem)
    assert reasoning.content
    assert reasoning.content[0].text == 'A short "thought".'
    assert await client.responses.retrieve(made.id) == made
    items = await client.responses.input_items.list(made.id)
    (item,) = items.data
    assert isinstance(item, sdk.ResponseInputMessageItem)
    await client.responses.delete(made.id)
    for lost in (client.responses.retrieve(made.id), client.responses.delete(made.id)):
        with pytest.raises(openai.NotFoundError) as caught:
            await lost
        assert caught.value.code == "response_not_found"


async def test_every_event_is_of_its_type(client: Client, serve: Fixture) -> None:
    stream = await client.responses.create(model=MODEL, input="Hello!", stream=True)
    kinds = []
    async for event in stream:
        cls = EVENT_TYPES[event.type]
        assert type(event) is cls
        cls.model_validate(event.model_dump())
        kinds.append(event.type)
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_the_stream_helper_gives_the_final_response(client: Client) -> None:
    """lmstudio-bug-tracker#1188: what was streamed is stored by the time its end is known."""
    async with client.responses.stream(model=MODEL, input="Hello!") as stream:
        text = "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])
        final = await stream.get_final_response()
    assert final.output_text == text == "Grüße, 👩‍🚀!\n"
    kept = await client.responses.retrieve(final.id)
    assert (kept.output_text, kept.usage) == (final.output_text, final.usage)
    again = await client.responses.create(
        model=MODEL, input="And?", previous_response_id=final.id, store=False
    )
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(again.id)


class Answer(pydantic.BaseModel):
    name: str
    age: int


async def test_structured_output_is_parsed(serve: Fixture, make_runtime: Fixture) -> None:
    """vllm#45570, sglang#31019: JSON in the final message is a message, streamed and whole."""
    answer = '<|channel|>final <|constrain|>json<|message|>{"name": "Ann", "age": 7}<|return|>'
    client: Client = await serve(make_runtime(answer))
    whole = await client.responses.parse(model=MODEL, input="Who?", text_format=Answer)
    assert whole.output_parsed == Answer(name="Ann", age=7)
    async with client.responses.stream(model=MODEL, input="Who?", text_format=Answer) as stream:
        assert (await stream.get_final_response()).output_parsed == Answer(name="Ann", age=7)


async def test_a_tool_loop_goes_round(serve: Fixture, make_runtime: Fixture, call: str) -> None:
    """vllm#27653: items come back as they were given, by value and by reference."""
    answer = "<|channel|>final<|message|>It is 17.<|return|>"
    client: Client = await serve(make_runtime(call, answer, call, answer))
    tool: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None}
    history: list[Any] = [{"role": "user", "content": "What is it?"}]
    for is_stored in (False, True):
        first = await client.responses.create(
            model=MODEL, input=history, tools=[tool], store=is_stored
        )
        function_call = first.output[-1]
        assert isinstance(function_call, sdk.ResponseFunctionToolCall)
        result = {"type": "function_call_output", "call_id": function_call.call_id, "output": "17"}
        if is_stored:
            ids = [{"type": "item_reference", "id": item.id} for item in first.output]
            history = [*history, *ids, result]
        else:
            history = [*history, *first.output, result]
        last = await client.responses.create(model=MODEL, input=history, tools=[tool])
        assert last.output_text == "It is 17."


def text_of(item: Any) -> Any:
    return item.content[0].text


async def test_input_items_come_in_pages(client: Client) -> None:
    given: Any = [{"role": "user", "content": str(number)} for number in range(7)]
    made = await client.responses.create(model=MODEL, input=given)
    pages = client.responses.input_items
    texts = [text_of(item) async for item in pages.list(made.id, limit=3, order="asc")]
    assert texts == [str(number) for number in range(7)]
    newest = await pages.list(made.id, limit=1)
    assert newest.has_more
    assert text_of(newest.data[0]) == "6"
    with pytest.raises(openai.BadRequestError, match="after"):
        await pages.list(made.id, after="nothing")


async def test_a_background_response_is_polled_and_streamed_again(client: Client) -> None:
    made = await client.responses.create(model=MODEL, input="Hello!", background=True)
    assert made.status == "queued"
    stream = await client.responses.retrieve(made.id, stream=True)
    events = [event async for event in stream]
    assert [event.type for event in events[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    rest = await client.responses.retrieve(made.id, stream=True, starting_after=7)
    assert [event async for event in rest] == events[8:]
    ended = await client.responses.retrieve(made.id)
    assert ended.output_text == "Grüße, 👩‍🚀!\n"
    assert await client.responses.cancel(made.id) == ended  # too late: it stays as it is


async def test_only_background_responses_are_cancelled(client: Client) -> None:
    made = await client.responses.create(model=MODEL, input="Hello!")
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.cancel(made.id)
    assert caught.value.code == "not_in_background"


async def test_errors_are_the_sdks_own(client: Client) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model=MODEL, input="Hi", previous_response_id="resp_no")
    assert caught.value.code == "previous_response_not_found"
    with pytest.raises(openai.NotFoundError, match="gpt-oss-20b"):
        await client.responses.create(model="gpt-17", input="Hi")


SHELL = '{"commands":["ls","pwd"]}'
PATCH = '{"type":"create_file","path":"a","diff":"+x"}'
SEARCH = {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("tool", "written", "kind"),
    [
        ({"type": "shell"}, SHELL, sdk.ResponseFunctionShellToolCall),
        ({"type": "apply_patch"}, PATCH, sdk.ResponseApplyPatchToolCall),
        ({"type": "local_shell"}, '{"command":["ls"]}', None),
        (SEARCH, '{"query":"x"}', sdk.ResponseToolSearchCall),
    ],
)
async def test_calls_and_events_of_typed_tools_are_of_the_published_types(
    serve: Fixture, make_runtime: Fixture, tool: Any, written: str, kind: Any
) -> None:
    header = f"<|channel|>commentary to=functions.{tool['type']} <|constrain|>json<|message|>"
    client = await serve(make_runtime(f"{header}{written}<|call|>"))
    stream = await client.responses.create(model=MODEL, input="Hi", tools=[tool], stream=True)
    names = []
    async for event in stream:
        EVENT_TYPES[event.type].model_validate(event.model_dump())
        names.append(event.type.removeprefix("response."))
        last = event
    assert names[2] == "output_item.added"
    assert names.count("shell_call_command.done") == (2 if tool["type"] == "shell" else 0)
    (item,) = last.response.output
    assert type(item) is (kind or sdk.response_output_item.LocalShellCall)
    type(item).model_validate(item.model_dump())
