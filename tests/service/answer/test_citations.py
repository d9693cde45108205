"""Citations of pages that a browser showed, in chat completions and in responses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from service.answer.citations import Citation, Sources
from service.tools import ConnectedTool, Toolbox, ToolResult
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.needs import needs
from tests.service.conftest import chat_body, events, harmony_ids, make_client, make_runtime

__all__ = ["chat_body", "events", "harmony_ids", "make_client", "make_runtime"]

CALL = '<|channel|>analysis to=browser.open code<|message|>{"id": 1}<|call|>'
TEXT = "É is one【0†L4-L5】, not two【7†L1】."
FINAL = f"<|channel|>final<|message|>{TEXT}<|return|>"
SHOWN = (
    "[0] A (page) (https://a.example/x_(y))\n**viewing lines [0 - 4] of 4**\n\n"
    "L0: text\nL4: one\nL5: berth"
)
CITED = {"start_index": 8, "end_index": 17, "url": "https://a.example/x_(y)", "title": "A (page)"}

Asked = Callable[..., Any]


class Browser:
    async def call(self, action: str, text: str) -> ToolResult:
        return ToolResult(SHOWN)

    async def close(self) -> None: ...


@pytest.fixture
def asked(
    make_runtime: Callable[..., Any],
    make_client: Callable[..., Any],
    harmony_ids: Callable[[str], tuple[int, ...]],
) -> Asked:
    """The answer of a route to a request whose model opens a page and cites it."""

    async def ask(path: str, body: dict[str, Any]) -> Any:
        texts = [FINAL, CALL]
        engine = FakeEngine(FakeOptions(script=(1,)), lambda _: harmony_ids(texts.pop()))
        toolbox = Toolbox({"browser": ConnectedTool(lambda headers, answer: Browser(), 60.0)})
        client = await make_client(replace(make_runtime(engine=engine), toolbox=toolbox))
        answer = await client.post(path, json={"model": "gpt-oss-20b", **body})
        assert answer.status_code == 200
        return answer

    return ask


def test_a_page_is_cited_by_its_cursor() -> None:
    sources = Sources()
    assert sources.cited(TEXT) == []
    sources.add("python", SHOWN)
    assert sources.cited(TEXT) == []
    sources.add("browser.open", SHOWN)
    sources.add("browser.search", "[7] results\n**viewing lines [0 - 4] of 4**\n")
    assert sources.cited(TEXT) == [Citation(8, 17, str(CITED["url"]), "A (page)", "one berth")]
    assert sources.cited("【0†title†host】")[0].end == 14
    assert [each.quoted for each in sources.cited("【0†title】【0†L5】【0†L9】")] == [
        "",
        "berth",
        "",
    ]


async def test_a_chat_completion_has_them(asked: Asked, events: Callable[..., Any]) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "One?"}],
        "tools": [{"type": "web_search"}],
    }
    expected = [{"type": "url_citation", "url_citation": CITED}]
    whole = (await asked("/v1/chat/completions", body)).json()["choices"][0]["message"]
    assert (whole["content"], whole["annotations"]) == (TEXT, expected)
    streamed = events((await asked("/v1/chat/completions", body | {"stream": True})).text)
    deltas = [event["choices"][0]["delta"] for event in streamed if event != "[DONE]"]
    assert [delta["annotations"] for delta in deltas if "annotations" in delta] == [expected]


@needs("responses")
async def test_a_response_has_them(asked: Asked) -> None:
    body = {"input": "One?", "tools": [{"type": "web_search"}]}
    expected = {"type": "url_citation", **CITED}
    _, message = (await asked("/v1/responses", body)).json()["output"]
    assert message["content"][0]["annotations"] == [expected]
    lines = (await asked("/v1/responses", body | {"stream": True})).text.split("\n")
    streamed = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    kind = "response.output_text.annotation.added"
    [added] = [event for event in streamed if event["type"] == kind]
    assert (added["annotation"], added["annotation_index"]) == (expected, 0)
    assert streamed[-1]["response"]["output"][1]["content"][0]["annotations"] == [expected]


@needs("messages")
async def test_a_message_has_them(asked: Asked) -> None:
    body = {
        "messages": [{"role": "user", "content": "One?"}],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
        "max_tokens": 1000,
    }
    expected = {
        "type": "web_search_result_location",
        "url": CITED["url"],
        "title": CITED["title"],
        "encrypted_index": "",
        "cited_text": "one berth",
    }
    content = (await asked("/v1/messages", body)).json()["content"]
    text = next(block for block in content if block["type"] == "text")
    assert (text["text"], text["citations"]) == (TEXT, [expected])
    lines = (await asked("/v1/messages", body | {"stream": True})).text.split("\n")
    streamed = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [event for event in streamed if event["type"] == "content_block_delta"]
    assert deltas[-1]["delta"] == {"type": "citations_delta", "citation": expected}
    assert deltas[-1]["index"] == deltas[-2]["index"]
