"""The `# Response Formats` section: the model is told the schema that it is held to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engines.base import EngineRequest
from service.harmony.vocabulary import decode_marked
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

SCHEMA = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "description": "entries – «all»", "items": {"type": "string"}}
    },
}
WRITTEN = (
    '{"type":"object","properties":{"items":{"type":"array","description":"entries – «all»",'
    '"items":{"type":"string"}}}}'
)
FINAL = "<|channel|>final<|message|>{}<|return|>"
TOOL = {"type": "function", "function": {"name": "f"}}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


@pytest.fixture
async def developer(make_runtime: Fixture, make_client: Fixture, harmony_ids: Fixture) -> Fixture:
    """The developer message of a request's prompt."""
    prompts: list[tuple[int, ...]] = []

    def script(request: EngineRequest) -> tuple[int, ...]:
        prompts.append(request.prompt_token_ids)
        return tuple(harmony_ids(FINAL))

    client = await make_client(make_runtime(engine=FakeEngine(FakeOptions(script=(1,)), script)))

    async def ask(path: str, **body: Any) -> str:
        answer = await client.post(path, json={"model": "gpt-oss-20b", **body})
        assert answer.status_code == 200, answer.text
        text = decode_marked(prompts[-1])
        _, _, behind = text.partition("<|start|>developer<|message|>")
        return behind.partition("<|end|>")[0]

    return ask


def chat_format(**changes: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "list", "schema": SCHEMA, **changes}}


async def test_a_named_schema_ends_the_developer_message(developer: Fixture) -> None:
    hello = [{"role": "user", "content": "Hi"}]
    plain = await developer(CHAT, messages=hello, response_format=chat_format())
    assert plain == f"# Response Formats\n\n## list\n\n{WRITTEN}"
    full = await developer(
        CHAT,
        messages=[{"role": "system", "content": "Be brief."}, *hello],
        tools=[TOOL],
        response_format=chat_format(description="What to buy.\nNo brands."),
    )
    assert full.startswith("# Instructions\n\nBe brief.\n\n# Tools\n\n## functions\n\n")
    assert full.endswith(
        "} // namespace functions\n\n# Response Formats\n\n## list\n\n"
        f"// What to buy.\n// No brands.\n{WRITTEN}"
    )


async def test_it_is_the_same_on_every_route(developer: Fixture) -> None:
    hello = [{"role": "user", "content": "Hi"}]
    chat = await developer(CHAT, messages=hello, response_format=chat_format(name="response"))
    text = {"format": {"type": "json_schema", "name": "response", "schema": SCHEMA}}
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert await developer(RESPONSES, input="Hi", text=text) == chat
    assert await developer(MESSAGES, messages=hello, max_tokens=9, output_config=config) == chat
    assert await developer(CHAT, messages=hello, structured_outputs={"json": SCHEMA}) == chat


@pytest.mark.parametrize(
    "format", [{"type": "text"}, {"type": "json_object"}, {"structured_outputs": {"regex": "a+"}}]
)
async def test_no_schema_no_section(developer: Fixture, format: dict[str, Any]) -> None:
    asked = format if "structured_outputs" in format else {"response_format": format}
    assert await developer(CHAT, messages=[{"role": "user", "content": "Hi"}], **asked) == ""
