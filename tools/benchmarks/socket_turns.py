"""A tool loop over WebSocket beside HTTP, as Codex asks: `socket_turns URL MODEL`.

Over HTTP every turn posts the whole history; over WebSocket it sends what is new, with the id of
the response before. Pairs run in turn, each with a history of its own; the figures are medians.
CPU is that of the server's processes (`--pid`) and of this client; who else uses the machine hardly
changes it. The key is read from HARMONIUM_API_KEY.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import uuid4

import httpx2
import psutil
from websockets.asyncio.client import ClientConnection, connect

Json = dict[str, Any]
Ask = Callable[[list[Json], list[Json], str | None], Awaitable[Json]]

NUM_TOOLS = 12
TEXT = "The tide table of the harbour has a line for each hour of the day and for each berth. "
NAME = "read_line"
SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string", "enum": ["tides.txt"]}},
    "required": ["path"],
    "additionalProperties": False,
}


def options(model: str) -> Json:
    """What is the same in all turns: 12 tools, one of which must be called."""
    tools = [
        {"type": "function", "name": f"tool_{n}", "description": TEXT * 2, "parameters": SCHEMA}
        for n in range(NUM_TOOLS - 1)
    ]
    tool = {"type": "function", "name": NAME, "description": TEXT, "parameters": SCHEMA}
    choice = {"type": "function", "name": NAME}
    common = {"model": model, "store": False, "tools": [*tools, tool], "tool_choice": choice}
    return {**common, "reasoning": {"effort": "low"}, "max_output_tokens": 1024}


async def loop(ask: Ask, first: str, num_turns: int, result: str) -> float:
    """Seconds of a loop of that many calls and results."""
    history: list[Json] = [{"role": "user", "content": first}]
    new, before = history[:], None
    began = time.perf_counter()
    for _ in range(num_turns):
        response = await ask(history, new, before)
        call = next((o for o in response["output"] if o["type"] == "function_call"), None)
        assert call is not None, response
        given = {"type": "function_call_output", "call_id": call["call_id"], "output": result}
        history += [*response["output"], given]
        new, before = [given], response["id"]
    return time.perf_counter() - began


async def last_response(events: AsyncIterator[str]) -> Json:
    async for text in events:
        event = json.loads(text)
        if event["type"] in ("response.completed", "response.incomplete", "error"):
            assert event["type"] == "response.completed", event
            found: Json = event["response"]
    return found


def over_http(client: httpx2.AsyncClient, common: Json) -> Ask:
    async def ask(history: list[Json], new: list[Json], before: str | None) -> Json:
        body = {**common, "input": history, "stream": True}
        async with client.stream("POST", "/v1/responses", json=body) as answer:
            return await last_response(_data(answer.aiter_lines()))

    return ask


async def _data(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    async for line in lines:
        if line.startswith("data: {"):
            yield line[6:]


def over_socket(connection: ClientConnection, common: Json) -> Ask:
    async def ask(history: list[Json], new: list[Json], before: str | None) -> Json:
        event = {"type": "response.create", **common, "input": new}
        await connection.send(
            json.dumps(event | ({"previous_response_id": before} if before else {}))
        )
        return await last_response(_until_end(connection))

    return ask


async def _until_end(connection: ClientConnection) -> AsyncIterator[str]:
    while True:
        text = str(await connection.recv())
        yield text
        if text.startswith(('{"type":"response.completed"', '{"type":"error"')):
            return


def cpu_s(server: psutil.Process | None) -> float:
    """CPU seconds until now of this process and the server's."""
    total = time.process_time()
    for process in [server, *server.children(recursive=True)] if server else ():
        times = process.cpu_times()
        total += times.user + times.system
    return total


async def measure(
    url: str, model: str, num_pairs: int, num_turns: int, result: str, pid: int | None
) -> Json:
    server = psutil.Process(pid) if pid else None
    key = os.environ.get("HARMONIUM_API_KEY", "unused")
    headers = {"Authorization": f"Bearer {key}"}
    common = options(model)
    seconds: dict[str, list[float]] = {"http": [], "websocket": []}
    cpu: dict[str, list[float]] = {"http": [], "websocket": []}
    async with (
        httpx2.AsyncClient(base_url=url, headers=headers, timeout=600) as client,
        connect(
            f"{url.replace('http', 'ws', 1)}/v1/responses",
            additional_headers=headers,
            max_size=None,
            compression=None,
        ) as connection,
    ):
        asks = {"http": over_http(client, common), "websocket": over_socket(connection, common)}
        for pair in range(num_pairs + 1):
            for name in sorted(asks, reverse=pair % 2 == 1):
                first = f"{uuid4()} {TEXT}"  # no history is cached
                before = cpu_s(server)
                seconds[name].append(await loop(asks[name], first, num_turns, result))
                cpu[name].append(cpu_s(server) - before)
    figures = {"turns": num_turns, "result_bytes": len(result)}
    return {**figures, "elapsed": _compared(seconds), "cpu": _compared(cpu)}


def _compared(seconds: dict[str, list[float]]) -> Json:
    """Medians, and that of the share which WebSocket saves in each pair; without the first pair."""
    http, socket = seconds["http"][1:], seconds["websocket"][1:]
    saved = [1 - s / h for h, s in zip(http, socket, strict=True)]
    return {
        "http_s": round(statistics.median(http), 3),
        "websocket_s": round(statistics.median(socket), 3),
        "saved": round(statistics.median(saved), 3),
        "saved_each": [round(each, 3) for each in saved],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.socket_turns")
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--result-bytes", type=int, default=4096)
    parser.add_argument("--pid", type=int, help="of the server")
    given = parser.parse_args()
    result = (TEXT * (given.result_bytes // len(TEXT) + 1))[: given.result_bytes]
    url = given.url.rstrip("/")
    asked = (given.pairs, given.turns, result, given.pid)
    print(json.dumps(asyncio.run(measure(url, given.model, *asked))))


if __name__ == "__main__":
    main()
