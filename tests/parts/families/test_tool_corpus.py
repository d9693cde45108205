"""Real tools' schemas pass on all routes, whether a call is forced or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engines.base import EngineRequest
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.parts.families.table import CHAT, HI, MESSAGES, MODEL, RESPONSES
from tests.service.guide.tool_schemas import tool_schemas

Fixture = Any
HEADER = "X-Harmonium-Not-Enforced"
TAGS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
SET = {"type": "object", "properties": {"t": TAGS}, "required": ["t"]}


def _body(path: str, tools: dict[str, Any], choice: str, strict: bool | None) -> dict[str, Any]:
    given = {} if strict is None else {"strict": strict}
    if path == MESSAGES:
        offered = [{"name": n, "input_schema": s, **given} for n, s in tools.items()]
        kind = {"required": "any"}.get(choice, choice)
        chosen = {"tool_choice": {"type": kind}}
        return {**MODEL, "messages": HI, "max_tokens": 9, "tools": offered, **chosen}
    functions = [{"name": n, "parameters": s, **given} for n, s in tools.items()]
    if path == RESPONSES:
        plain = [{"type": "function", **function} for function in functions]
        return {**MODEL, "input": "Hi", "tools": plain, "tool_choice": choice}
    nested = [{"type": "function", "function": function} for function in functions]
    return {**MODEL, "messages": HI, "tools": nested, "tool_choice": choice}


def _batches() -> Iterator[dict[str, Any]]:
    """The tools, as many at a time as an agent has with some servers."""
    names = [*tool_schemas()]
    for start in range(0, len(names), 44):
        yield {name: tool_schemas()[name] for name in names[start : start + 44]}


@pytest.fixture
def asked() -> list[EngineRequest]:
    """What the engine was asked."""
    return []


@pytest.fixture
async def client(make_runtime: Fixture, make_client: Fixture, asked: list[EngineRequest]) -> Any:
    def script(request: EngineRequest) -> tuple[int, ...]:
        asked.append(request)
        return (200002,)

    engine = FakeEngine(FakeOptions(script=(1,), max_model_len=131_072), script)
    return await make_client(make_runtime(engine=engine))


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_the_corpus_passes_forced_and_unforced(
    client: Any, asked: list[EngineRequest], guide_of: Fixture, path: str
) -> None:
    noted = 0
    for tools in _batches():
        for choice in ("auto", "required"):
            body = _body(path, tools, choice, None)
            response = await client.post(path, json=body)
            assert response.status_code == 200, response.text
            noted += HEADER in response.headers
        assert asked[-2].grammar is None
        assert asked[-1].grammar is not None
        guide_of(asked[-1].grammar)
    assert noted == 5  # each forced request, and no other


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_strict_refuses_what_is_widened_without_it(client: Any, path: str) -> None:
    response = await client.post(path, json=_body(path, {"tag": SET}, "required", None))
    assert response.status_code == 200, response.text
    place = response.headers[HEADER]
    assert place.endswith("properties.t: uniqueItems")
    assert place.startswith("tools[0].")
    for choice in ("auto", "required"):
        refused = await client.post(path, json=_body(path, {"tag": SET}, choice, True))
        assert refused.status_code == 400
        assert "uniqueItems is not supported" in refused.text


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_a_format_is_widened_unless_it_is_strict(client: Any, path: str) -> None:
    body = _body(path, {}, "auto", None)
    body |= {"tools": None, "tool_choice": None, **_format(path)}
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers[HEADER].endswith("schema.properties.t: uniqueItems")
    if path != MESSAGES:  # which has no `strict` of a format
        refused = await client.post(path, json=body | _format(path, strict=True))
        assert refused.status_code == 400
        assert "uniqueItems is not supported" in refused.text


def _format(path: str, **more: Any) -> dict[str, Any]:
    said = {"schema": SET, **more}
    if path == CHAT:
        schema = {"name": "x", **said}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    if path == RESPONSES:
        return {"text": {"format": {"type": "json_schema", "name": "x", **said}}}
    return {"output_config": {"format": {"type": "json_schema", **said}}}


async def test_what_is_not_enforced_is_in_the_requests_log_line(
    client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "harmonium.access"):
        await client.post(CHAT, json=_body(CHAT, {"tag": SET}, "required", None))
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if line.endswith("not enforced: uniqueItems")] != []
