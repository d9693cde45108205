"""The real openai SDK reads the items and events of built-in tools as its own types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openai import AsyncOpenAI
from openai.types.responses import (
    ResponseCodeInterpreterToolCall,
    ResponseFunctionWebSearch,
)

from tests.needs import needs

pytestmark = needs("responses")

Fixture = Callable[..., Any]

TOOLS: Any = [
    {"type": "web_search_preview"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
]
OPEN = '<|channel|>analysis to=browser.open code<|message|>{"id": "https://a.example/b"}<|call|>'
FIND = '<|channel|>analysis to=browser.find code<|message|>{"pattern": 3}<|call|>'


async def test_events_and_items_are_the_sdks(service: Fixture, script: dict[str, str]) -> None:
    texts = script["python"].format("print(4)"), script["search"], OPEN, FIND, script["final"]
    http = await service(*texts, timeout_s=1)
    client = AsyncOpenAI(base_url="http://service/v1", api_key="none", http_client=http)
    async with client.responses.stream(model="gpt-oss-20b", input="2 + 2?", tools=TOOLS) as stream:
        async for event in stream:
            if "web_search" in event.type or "code_interpreter" in event.type:
                type(event).model_validate(event.model_dump())
        final = await stream.get_final_response()
    code, search, opened, found, message = final.output
    assert isinstance(code, ResponseCodeInterpreterToolCall)
    assert (code.code, code.outputs and code.outputs[0].type) == ("print(4)", "logs")
    for item, kind in ((search, "search"), (opened, "open_page"), (found, "find_in_page")):
        assert isinstance(item, ResponseFunctionWebSearch)
        assert type(item).model_validate(item.model_dump()).action.type == kind
    assert opened.action.url == "https://a.example/b"
    assert message.type == "message"
    assert final.output_text == "It is 4."
    again: Any = [*final.output, {"role": "user", "content": "Thanks"}]
    answer = await client.responses.create(model="gpt-oss-20b", input=again, tools=TOOLS)
    assert answer.status == "completed"
