"""Pictures and files in tools' results become a line of the prompt; text in files is text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from engines.base import EngineRequest
from service.harmony.vocabulary import decode_marked
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.parts.families.table import CHAT, MESSAGES, MODEL, RESPONSES

Fixture = Any

PNG = "iVBORw0KGgo="
LINE = "[image/png, 8 bytes: this model reads text only]"
SEE = {"role": "user", "content": "see"}
TEXT = {"type": "text", "text": "size 1x1"}
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
RESPONSES_IMAGE = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}
MESSAGES_IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": PNG},
}
WORDS = {
    CHAT: {"type": "file", "file": {"filename": "T", "file_data": "data:text/plain,words"}},
    RESPONSES: {"type": "input_file", "filename": "T", "file_data": "data:text/plain,words"},
    MESSAGES: {
        "type": "document",
        "title": "T",
        "source": {"type": "text", "media_type": "text/plain", "data": "words"},
    },
}
QUESTION = {"type": "text", "text": "Which?"}


def _chat(*parts: Any, custom: bool = False) -> dict[str, Any]:
    call: dict[str, Any] = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    if custom:
        call = {"type": "custom", "custom": {"name": "look", "input": "x"}}
    result = {"role": "tool", "tool_call_id": "a", "content": [*parts]}
    return {
        "messages": [SEE, {"role": "assistant", "tool_calls": [{"id": "a", **call}]}, result],
    }


def _messages(*parts: Any) -> dict[str, Any]:
    use = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [*parts]}
    turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return {"messages": [SEE, *turns]}


def _responses(*parts: Any, custom: bool = False) -> dict[str, Any]:
    call = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
    if custom:
        call = {"type": "custom_tool_call", "call_id": "a", "name": "look", "input": "x"}
    result = {"type": f"{call['type']}_output", "call_id": "a", "output": [*parts]}
    return {"input": [SEE, call, result]}


def _of_message(route: str, *parts: Any) -> dict[str, Any]:
    text = QUESTION if route != RESPONSES else QUESTION | {"type": "input_text"}
    turn = {"role": "user", "content": [*parts, text]}
    given = {"input": [turn]} if route == RESPONSES else {"messages": [turn]}
    return {**MODEL, **given, **({"max_tokens": 9} if route == MESSAGES else {})}


@pytest.fixture
def prompts() -> list[str]:
    """The prompts that the engine gets."""
    return []


@pytest.fixture
async def client(
    make_runtime: Fixture, make_client: Fixture, harmony_ids: Fixture, prompts: list[str]
) -> Any:
    def script(request: EngineRequest) -> tuple[int, ...]:
        prompts.append(decode_marked(request.prompt_token_ids))
        return tuple(harmony_ids("<|channel|>final<|message|>No picture.<|return|>"))

    options = FakeOptions(script=(1,), max_model_len=400)
    return await make_client(make_runtime(engine=FakeEngine(options, script)))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, _chat(TEXT, CHAT_IMAGE)),
        (CHAT, _chat(TEXT, CHAT_IMAGE, custom=True)),
        (MESSAGES, _messages(TEXT, MESSAGES_IMAGE) | {"max_tokens": 9}),
        (RESPONSES, _responses(TEXT | {"type": "input_text"}, RESPONSES_IMAGE)),
        (RESPONSES, _responses(TEXT | {"type": "input_text"}, RESPONSES_IMAGE, custom=True)),
    ],
)
async def test_a_picture_in_a_tools_result_is_a_line_of_the_prompt_and_is_counted(
    client: Any, prompts: list[str], path: str, body: dict[str, Any]
) -> None:
    response = await client.post(path, json=MODEL | body)
    assert response.status_code == 200, response.text
    assert f"<|message|>size 1x1\n{LINE}<|end|>" in prompts[-1]
    metrics = (await client.get("/v1/metrics")).text
    assert f'harmonium_unread_parts_total{{route="{path}"}} 1.0' in metrics


@pytest.mark.parametrize(
    ("path", "with_picture", "with_line"),
    [
        ("/tokenize", _chat(CHAT_IMAGE), _chat(TEXT | {"text": LINE})),
        ("/v1/chat/completions/render", _chat(CHAT_IMAGE), _chat(TEXT | {"text": LINE})),
        (
            "/v1/messages/count_tokens",
            _messages(MESSAGES_IMAGE),
            _messages(TEXT | {"text": LINE}),
        ),
        (
            "/v1/responses/input_tokens",
            _responses(RESPONSES_IMAGE),
            _responses({"type": "input_text", "text": LINE}),
        ),
    ],
)
async def test_it_counts_as_that_line(
    client: Any, path: str, with_picture: dict[str, Any], with_line: dict[str, Any]
) -> None:
    counts = [await client.post(path, json=MODEL | b) for b in (with_picture, with_line)]
    assert [c.status_code for c in counts] == [200, 200]
    assert counts[0].json() == counts[1].json()


def _beside(path: str, picture: dict[str, Any], *more: dict[str, Any]) -> dict[str, Any]:
    """A result, and its picture in a user's message behind it, as Cline and Qwen Code send it."""
    if path == MESSAGES:
        body = _messages(TEXT)
        body["messages"][-1]["content"] += [picture, TEXT | {"text": "Look."}]
        return {"messages": [*body["messages"], *more], "max_tokens": 9}
    turn = {"role": "user", "content": [picture]}
    if path == CHAT:
        return {"messages": [*_chat(TEXT)["messages"], turn, *more]}
    return {"input": [*_responses(TEXT | {"type": "input_text"})["input"], turn, *more]}


BESIDE = [(CHAT, CHAT_IMAGE), (MESSAGES, MESSAGES_IMAGE), (RESPONSES, RESPONSES_IMAGE)]


@pytest.mark.parametrize(("path", "picture"), BESIDE)
async def test_a_picture_behind_a_tools_result_is_a_line_until_the_next_answer(
    client: Any, prompts: list[str], path: str, picture: dict[str, Any]
) -> None:
    response = await client.post(path, json=MODEL | _beside(path, picture))
    assert response.status_code == 200, response.text
    assert f"<|start|>user<|message|>{LINE}" in prompts[-1]
    metrics = (await client.get("/v1/metrics")).text
    assert f'harmonium_unread_parts_total{{route="{path}"}} 1.0' in metrics
    answer = {"role": "assistant", "content": "I cannot see it."}
    own = {"role": "user", "content": [picture]}
    later = await client.post(path, json=MODEL | _beside(path, picture, answer, own))
    assert later.status_code == 400, "a person's own picture"
    body = _beside(path, picture, answer, SEE)
    place = len(body["input" if path == RESPONSES else "messages"]) - 1
    assert f"[{place}].content[0]" in later.text
    assert (await client.post(path, json=MODEL | body)).status_code == 200


async def test_truncation_and_what_is_stored_have_the_line(client: Any, prompts: list[str]) -> None:
    """The picture's own megabyte is no part of the prompt, nor of what is kept."""
    large = RESPONSES_IMAGE | {"image_url": f"data:image/png;base64,{'A' * 1_000_000}"}
    body = {**MODEL, **_responses(large), "truncation": "auto"}
    response = await client.post(RESPONSES, json=body)
    assert response.status_code == 200, response.text
    assert "[image/png, 750,000 bytes: this model reads text only]" in prompts[-1]
    items = await client.get(f"{RESPONSES}/{response.json()['id']}/input_items?order=asc")
    outputs = [i["output"] for i in items.json()["data"] if i["type"] == "function_call_output"]
    assert outputs == ["[image/png, 750,000 bytes: this model reads text only]"]


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (CHAT, CHAT_IMAGE),
        (MESSAGES, MESSAGES_IMAGE),
        (RESPONSES, RESPONSES_IMAGE),
        (CHAT, {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}}),
        (MESSAGES, {"type": "document", "source": {"type": "url", "url": "http://x/y.pdf"}}),
        (
            MESSAGES,
            {
                "type": "document",
                "source": {"type": "content", "content": [TEXT, MESSAGES_IMAGE]},
            },
        ),
        (RESPONSES, {"type": "input_file", "file_id": "file-1"}),
    ],
)
async def test_a_users_own_picture_is_refused_by_its_path(
    client: Any, path: str, part: dict[str, Any]
) -> None:
    response = await client.post(path, json=_of_message(path, part))
    assert response.status_code == 400
    assert re.search(r"(messages|input)\[0\]\.content\[0\]", response.text)
    assert part["type"] in response.text


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_a_users_file_of_plain_text_is_text_with_its_title(
    client: Any, prompts: list[str], path: str
) -> None:
    response = await client.post(path, json=_of_message(path, WORDS[path]))
    assert response.status_code == 200, response.text
    assert "<|start|>user<|message|>T\n\nwords\nWhich?<|end|>" in prompts[-1]
    assert "harmonium_unread_parts_total{" not in (await client.get("/v1/metrics")).text
