"""Whatever comes, the parts that read it neither fail nor let anything through.

A short, repeatable run by default; `make fuzz` searches on with new inputs.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.parts import folders
from service.admission.lifecycle import Lifecycle
from service.chat_format import format_named
from service.conversation import Tool
from service.harmony import vocabulary
from service.harmony.parse import Parser
from service.harmony.typescript import describe_tools, write_type
from service.run.server import create_app
from service.runtime import Runtime, ServedModel
from service.telemetry.metrics import Metrics
from tests.examples import any_text
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Streams = Callable[[str, dict[str, Any], list[list[int]]], list[str]]

NUM_EXAMPLES = os.environ.get("FUZZ_EXAMPLES")
FUZZ = settings(
    max_examples=int(NUM_EXAMPLES or 12),
    derandomize=NUM_EXAMPLES is None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
CONTROLS = (
    vocabulary.START,
    vocabulary.CHANNEL,
    vocabulary.MESSAGE,
    vocabulary.CONSTRAIN,
    vocabulary.END,
    vocabulary.CALL,
)
LAST = (vocabulary.RETURN, vocabulary.CALL, vocabulary.ENDOFTEXT)
# What could break an event apart, look like one, or look like markup of ours.
AWKWARD = (
    *("\n\n", "\r\n\r\n", "\r", "\0", "\u2028", "\u0085", "\ufeff", "data: [DONE]\n\n", "event: x"),
    *(
        ": keep-alive\n\n",
        "id:",
        "retry: 0",
        '"}]}',
        "\\",
        "👩‍🚀",
        "final",
        "analysis",
        "commentary",
    ),
    *(
        " to=functions.f",
        " to=functions.",
        " json",
        "assistant",
        '{"a": 1}',
        " to=python",
        "functions",
    ),
)

numbers = st.one_of(
    st.sampled_from(CONTROLS), st.integers(-5, 300_000), st.integers(199_990, 201_090)
)
awkward = st.sampled_from(AWKWARD).map(vocabulary.encode_text)
pieces = st.one_of(
    numbers.map(lambda number: [number]), awkward, any_text().map(vocabulary.encode_text)
)
outputs = st.lists(pieces, max_size=20).map(lambda found: [id for ids in found for id in ids])
texts = st.lists(st.one_of(st.sampled_from(AWKWARD), any_text(max_size=5)), max_size=12).map(
    "".join
)
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), any_text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(any_text(), inner, max_size=3)
    ),
    max_leaves=6,
)


@FUZZ
@given(outputs, st.integers(1, 7))
def test_harmony_parser(output: list[int], step: int) -> None:
    whole, stepped = Parser(frozenset({"f"})), Parser(frozenset({"f"}))
    at_once = [*whole.feed(output), *whole.finish()]
    in_steps = [d for i in range(0, len(output), step) for d in stepped.feed(output[i : i + step])]
    in_steps += stepped.finish()
    assert joined(at_once) == joined(in_steps)
    assert [*whole.feed(output), *whole.finish()] == []  # what has ended stays ended


def joined(deltas: list[Any]) -> dict[tuple[Any, int], str]:
    """The text of each kind and call."""
    found: dict[tuple[Any, int], str] = {}
    for delta in deltas:
        key = (delta.kind, delta.call_index)
        found[key] = found.get(key, "") + delta.text
    return found


ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
}
if "responses" in folders():
    ROUTES["/v1/responses"] = {"input": "x", "store": False}
if "messages" in folders():
    ROUTES["/v1/messages"] = ROUTES["/v1/chat/completions"] | {"max_tokens": 1000}


@pytest.mark.parametrize("path", ROUTES)
@FUZZ
@given(texts, outputs)
def test_sse_writer(streams: Streams, path: str, text: str, output: list[int]) -> None:
    """A strict reader of server-sent events finds whole JSON events and the text that was made."""
    head = [vocabulary.CHANNEL, *vocabulary.encode_text("final"), vocabulary.MESSAGE]
    clean = [*head, *vocabulary.encode_text(text), vocabulary.RETURN]
    wild = [number for number in output if 0 <= number < 201_088 and number not in LAST]
    body = {"model": "m", "stream": True, **ROUTES[path]}
    answer, noise = streams(path, body, [clean, [*wild, vocabulary.RETURN]])
    assert text_of(events_of(answer)) == text
    assert "<|" not in re.sub(r"<\|(?![a-z]+\|>)", "", noise)
    events_of(noise)


@pytest.fixture(scope="module")
def streams() -> Iterator[Streams]:
    """One server in this process, whose model writes what it is given."""
    scripts: list[list[int]] = []
    runtime = Runtime(
        engine=FakeEngine(FakeOptions(tokens_per_step=3), lambda _request: scripts.pop(0)),
        model=ServedModel("m", "m", "0" * 64, 0),
        format=format_named("harmony"),
        metrics=Metrics("m"),
        lifecycle=Lifecycle(),
    )
    runtime.lifecycle.mark_ready()
    transport = httpx2.ASGITransport(create_app(runtime))
    client = httpx2.AsyncClient(transport=transport, base_url="http://service")

    async def ask(path: str, body: dict[str, Any], given: list[list[int]]) -> list[str]:
        scripts[:] = given
        answers = [await client.post(path, json=body) for _ in given]
        assert [answer.status_code for answer in answers] == [200] * len(given)
        return [answer.content.decode() for answer in answers]

    with asyncio.Runner() as runner:
        runner.run(runtime.engine.start())
        yield lambda *asked: runner.run(ask(*asked))
        runner.run(client.aclose())
        runner.run(runtime.engine.stop())
        runner.run(runtime.jobs.close(5))


def events_of(stream: str) -> list[dict[str, Any]]:
    """Read as the standard says: lines end with CR, LF or both; a blank one ends an event."""
    found: list[str] = []
    data: list[str] = []
    for line in re.split(r"\r\n|\n|\r", stream):
        name, _, value = line.partition(":")
        if line == "" and data:
            found.append("\n".join(data))
            data = []
        elif name == "data":
            data.append(value.removeprefix(" "))
        else:
            assert name in ("", "event"), line
    assert not data, "the last event is not ended"
    return [json.loads(text) for text in found if text != "[DONE]"]


def text_of(events: list[dict[str, Any]]) -> str:
    parts = []
    for event in events:
        if event.get("type") == "response.output_text.delta":
            parts.append(event["delta"])
        elif event.get("type") == "content_block_delta":
            parts.append(event["delta"].get("text", ""))
        for choice in event.get("choices", ()):
            parts.append(choice["delta"].get("content") or "")
    return "".join(parts)


@FUZZ
@given(any_text(), st.dictionaries(any_text(), anything, max_size=4), any_text())
def test_tool_schema_renderer(name: str, schema: dict[str, Any], description: str) -> None:
    tool = Tool(name or "f", description, schema)  # a dot in a name ends its namespace
    text = describe_tools([tool])
    assert text.endswith(f"}} // namespace {tool.namespace}")
    assert len(text) < 20 * (len(json.dumps(schema)) + len(name) + len(description) + 100)
    write_type(schema)


keywords = st.sampled_from(
    ("type", "properties", "items", "anyOf", "$ref", "$defs", "enum", "required", "allOf", "const")
)
references = st.sampled_from(
    ("#", "#/$defs/a", "#/properties/a", "#/$defs/a/$ref", "#/a/0", "object")
)
schemas = st.recursive(
    st.one_of(references, anything),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(keywords | st.just("a"), inner, max_size=4)
    ),
    max_leaves=6,
)


@FUZZ
@given(st.dictionaries(keywords | st.just("a"), schemas, max_size=4))
def test_tool_schemas_that_refer_to_themselves(schema: dict[str, Any]) -> None:
    assert isinstance(write_type(schema), str)
