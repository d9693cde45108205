"""What a client asks of the answer's shape is read without holding up anybody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import selectors
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx2
import pytest

from service.errors import RequestError
from service.guide.answer import MAX_STEPS, read_in_turns
from service.guide.schema import schema_grammar
from service.run.server import create_app
from service.work import Budget
from tests.calls import Calls, counted

Fixture = Callable[..., Any]


def wide(number: int) -> dict[str, Any]:
    """As many optional properties."""
    names = (f"property_{i}" for i in range(number))
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}


async def test_what_is_short_is_read_at_once_and_the_rest_in_a_thread() -> None:
    def read(number: int, budget: Budget) -> tuple[str, int]:
        grammar = schema_grammar(wide(number), "schema", budget)
        return grammar.schema, threading.get_ident()

    for number, is_here in ((100, True), (1_000, False)):
        text, thread = await read_in_turns(partial(read, number), "schema")
        assert len(json.loads(text)["properties"]) == number
        assert (thread == threading.get_ident()) is is_here


async def test_all_schemas_of_a_request_have_one_budget() -> None:
    def read(budget: Budget) -> None:
        for _ in range(1 + MAX_STEPS // 3_000):
            schema_grammar(wide(3_000), "schema", budget)

    with pytest.raises(RequestError, match=r"tools cannot be enforced: .* steps") as caught:
        await read_in_turns(read, "tools")
    assert (caught.value.status, caught.value.param) == (400, "tools")


class Meter(selectors.DefaultSelector):
    """Tells how many calls the loop made at most between two looks at its sockets."""

    most = 0

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls, self._before = calls, 0

    def select(self, timeout: float | None = None) -> Any:
        self.most = max(self.most, self._calls.number - self._before)
        ready = super().select(timeout)
        self._before = self._calls.number
        return ready


def format_of(schema: Any) -> dict[str, Any]:
    named = {"name": "answer", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def forced(schemas: list[Any]) -> dict[str, Any]:
    functions = [{"name": f"f{i}", "parameters": schema} for i, schema in enumerate(schemas)]
    tools = [{"type": "function", "function": function} for function in functions]
    return {"tools": tools, "tool_choice": "required"}


# With the most calls of a turn: up to twice what is made to bound and check them.
BODIES = {
    "format": (format_of(wide(2_000)), 45_000),
    "enum": (format_of({"enum": list(range(25_000))}), 120_000),
    "tools": (forced([wide(500)] * 8), 100_000),
    "choice": ({"structured_outputs": {"choice": [f"text {i}" for i in range(10_000)]}}, 15_000),
}


@pytest.mark.parametrize(("fields", "most_calls"), BODIES.values(), ids=BODIES)
def test_the_loop_is_not_held(
    make_runtime: Fixture, chat_body: Fixture, fields: dict[str, Any], most_calls: int
) -> None:
    """4,000 properties took it 90 ms at once: to close their schema and to write the prompt."""
    runtime = make_runtime("<|channel|>final<|message|>Hi<|return|>", max_model_len=1_000_000)

    async def ask(meter: Meter) -> list[int]:
        await runtime.engine.start()
        transport = httpx2.ASGITransport(create_app(runtime))
        async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
            statuses = []
            for content in (chat_body(), chat_body(**fields)):
                meter.most = 0
                reply = await client.post(
                    "/v1/chat/completions",
                    content=json.dumps(content),
                    headers={"content-type": "application/json"},
                )
                statuses.append(reply.status_code)
        await runtime.engine.stop()
        return statuses

    with counted() as calls:
        meter = Meter(calls)
        with contextlib.closing(asyncio.SelectorEventLoop(meter)) as loop:
            assert loop.run_until_complete(ask(meter)) == [200, 200]
    assert meter.most < most_calls
