"""What `python -m tools.benchmarks.serving` reads out of answers, and how it searches."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tools.benchmarks.serving.__main__ import planned
from tools.benchmarks.serving.client import Answer, Connector, Exchange, Server, parse
from tools.benchmarks.serving.figures import Objective, figures, group_figures, quantile
from tools.benchmarks.serving.plot import write_plot
from tools.benchmarks.serving.search import Rate, highest_rate, probe
from tools.benchmarks.serving.sitting import Results, sit
from tools.benchmarks.serving.table import table
from tools.benchmarks.serving.traffic import Agents, Poisson

ROOT = Path(__file__).parents[2]
OBJECTIVE = Objective(ttft_s=0.5, s_per_token=0.025)
TOKEN = b'data: {"choices":[{"text":"a","finish_reason":null}],"usage":null}\n\n'
LAST = b'data: {"choices":[{"text":"b","finish_reason":"length"}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":8}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
PLAIN_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))


async def answer_to(*reads: bytes) -> Answer:
    """What is made of an answer that comes in these reads."""
    exchange = Exchange(b"")
    for read in reads:
        exchange.data_received(read)
    exchange.connection_lost(None)
    return parse(exchange)


async def test_an_answer_is_read_whatever_its_framing_and_wherever_it_is_cut() -> None:
    parts = (TOKEN, LAST, USAGE, DONE)
    for whole in (PLAIN_HEAD + b"".join(parts), CHUNKED_HEAD + chunked(*parts)):
        for reads in ([whole], [bytes([byte]) for byte in whole]):
            answer = await answer_to(*reads)
            assert answer.is_whole
            assert (answer.num_tokens, answer.num_prompt_tokens, answer.num_cached_tokens) == (
                3, 10, 8,
            )  # fmt: skip
            assert len(answer.token_times) == 2


async def test_a_token_counts_when_its_event_is_whole() -> None:
    exchange = Exchange(b"")
    exchange.data_received(PLAIN_HEAD + TOKEN[:20])
    exchange.data_received(TOKEN[20:])
    exchange.data_received(LAST + DONE)
    exchange.connection_lost(None)
    times = [at for at, _ in exchange.reads]
    assert parse(exchange).token_times == (times[1], times[2])


@pytest.mark.parametrize(
    ("received", "is_rejected", "is_failed", "retry_after_s"),
    [
        (b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\n\r\n{}", True, False, 7.0),
        (b"HTTP/1.1 429 Many\r\n\r\n{}", True, False, None),
        (b"HTTP/1.1 500 Oh\r\n\r\n{}", False, True, None),
        (b"", False, True, None),
        (PLAIN_HEAD + TOKEN, False, True, None),  # it broke off
        (PLAIN_HEAD + TOKEN + b'data: {"error":{"message":"no"}}\n\n' + DONE, False, True, None),
    ],
)
async def test_rejected_is_not_failed(
    received: bytes, is_rejected: bool, is_failed: bool, retry_after_s: float | None
) -> None:
    answer = await answer_to(received)
    assert (answer.is_rejected, answer.is_failed) == (is_rejected, is_failed)
    assert answer.retry_after_s == retry_after_s


def whole(asked_at: float, *times: float, num_tokens: int | None = None) -> Answer:
    num = len(times) if num_tokens is None else num_tokens
    return Answer(asked_at, times[-1], 200, times, num, 100, 40, is_whole=True)


def test_figures_of_a_group() -> None:
    slow = whole(0.0, *(1.0 + 0.1 * n for n in range(41)))
    good = whole(0.0, *(0.1 + 0.01 * n for n in range(41)))
    rejected = Answer(0.0, 0.1, 503, retry_after_s=3.0)
    found = group_figures([good, slow, rejected], 10.0, OBJECTIVE)
    assert (found["whole"], found["rejected"], found["failed"], found["good"]) == (2, 1, 0, 1)
    assert found["cached_share"] == 0.4
    assert found["ttft_ms"]["max"] == 1000.0
    assert found["ms_per_token"] == {"p50": 100.0, "p90": 100.0, "p99": 100.0, "max": 100.0}
    assert found["gap_ms"]["p50"] == pytest.approx(100.0)  # 40 of 10 ms below 40 of 100
    assert found["goodput_per_s"] == 0.1
    assert found["retry_after_s"] == {"given": 1, "max": 3.0}


def test_gaps_count_where_they_overlap_the_window() -> None:
    answer = whole(0.0, 1.0, 2.0, 4.0, 5.0)
    found = group_figures([answer], 5.0, OBJECTIVE, [(2.5, 3.0)])
    assert found["gap_ms"] == {"p50": 2000.0, "p90": 2000.0, "p99": 2000.0, "max": 2000.0}


def test_quantiles_are_of_the_nearest_rank() -> None:
    values = [float(n) for n in range(100)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1.0)) == (50, 99, 99)


@pytest.mark.parametrize("capacity", [3.0, 20.0, 31.0, 70.0])
async def test_the_search_ends_within_its_precision_below_what_is_possible(capacity: float) -> None:
    asked: list[float] = []

    async def holds(rate: float) -> bool:
        asked.append(rate)
        return rate <= capacity

    found = await highest_rate(holds, 20.0, 1.5, 0.1, 20)
    assert capacity / 1.1 <= found <= capacity
    assert len(asked) <= 10


async def test_a_search_that_finds_nothing_says_0() -> None:
    async def holds(rate: float) -> bool:
        return False

    assert await highest_rate(holds, 20.0, 2.0, 0.1, 4) == 0.0


@asynccontextmanager
async def listening(*, answers: bool = True) -> AsyncIterator[Server]:
    """A server that answers each request with two tokens, or waits until the client hangs up."""
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answers:
            writer.write(PLAIN_HEAD + TOKEN + LAST + USAGE + DONE)
        else:
            with suppress(ConnectionError):
                while await reader.read(65536):
                    pass
        writer.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)

    listener = await asyncio.start_server(begin, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        yield Server("s", f"http://127.0.0.1:{port}", "m")
    finally:
        listener.close()
        while serving:
            await asyncio.wait(serving)


async def test_a_probe_that_can_only_fail_is_cut_short_and_hangs_up() -> None:
    async with listening(answers=False) as server:  # ends when the last client has hung up
        connector = Connector(server)
        load = Poisson(50, seconds=10, prompt=20, answer=10)
        found = await probe(connector, load, 0, Objective(ttft_s=0.05))
        assert found["ended_early"]
        assert not Objective().holds(found)
        assert not connector.open


async def test_a_search_against_a_server() -> None:
    async with listening() as server:
        search = Rate(rate=40, seconds=0.5, probes=1)
        found = await search.search(Connector(server), 0, Objective(ttft_s=30, s_per_token=30))
    assert found["highest_rate"] == 40
    [only] = found["probes"]
    assert only["holds"]
    assert only["whole"] == only["requests"] > 0


async def test_a_warm_up_is_the_same_load_and_not_in_the_results(tmp_path: Path) -> None:
    load = planned("burst=3,prompt=5,answer=2")
    async with listening() as server:
        counted = [replace(server, name=name) for name in ("a", "b")]
        results = Results(counted, OBJECTIVE, tmp_path / "results.json")
        await sit(results, counted, [load], OBJECTIVE, 0, is_warmed=True)
    kept = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert kept == results.rows
    assert [(row["server"], row["warmed"]) for row in kept] == [("a", True), ("b", True)]
    assert [row["groups"]["all"]["requests"] for row in kept] == [3, 3]


async def test_a_server_that_is_not_there_is_a_failure_and_no_hang() -> None:
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    connector = Connector(Server("s", f"http://127.0.0.1:{port}", "m"))
    assert parse(await connector.ask("/v1/completions", b"{}")).is_failed


def test_a_turn_of_an_agent_begins_with_the_turn_before() -> None:
    connector = Connector(Server("s", "http://127.0.0.1:1", "m"))
    first, second = (
        json.loads(body)["prompt"]
        for body in Agents(1, context=50, turns=2, new=20)._turns(connector)
    )
    assert (len(first), len(second)) == (70, 90)
    assert second[:70] == first


def test_loads_are_named_with_their_fields() -> None:
    load = planned("agents=24,context=400,pause=0.1").load
    assert load == Agents(24, context=400, pause=0.1)
    assert planned("rate").load == Rate()


@pytest.mark.parametrize("text", ["agent=3", "agents", "agents=few", "agents=3,contxt=4"])
def test_a_load_that_makes_no_sense_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="agent"):
        planned(text)


def rows_of(server: str, scale: float) -> list[dict[str, Any]]:
    answers = [whole(0.0, *(scale * (1 + n) for n in range(40)))]
    group = group_figures(answers, 10.0, OBJECTIVE)
    rows = [
        {"load": f"poisson={rate}", "server": server, "seconds": 10.0, "groups": {"all": group}}
        for rate in (8, 24)
    ]
    rows.append({"load": "agents=2", "server": server, "seconds": scale, "groups": {"x": group}})
    rate = {"rate": 9.0, "holds": True, **group}
    return [*rows, {"load": "rate", "server": server, "highest_rate": 9.0, "probes": [rate]}]


def test_results_of_two_sittings_stand_side_by_side(tmp_path: Path) -> None:
    sittings = [{"rows": rows_of("ours", 0.01)}, {"rows": rows_of("other", 0.02)}]
    rows = Results.merged(sittings).rows
    assert [row["server"] for row in rows] == ["ours", "other"] * 4
    lines = table(rows).splitlines()
    assert len(lines) == 2 + 8
    assert len({line.count("|") for line in lines}) == 1
    write_plot(tmp_path / "plot.svg", rows)
    svg = ElementTree.parse(tmp_path / "plot.svg")
    lines_drawn = svg.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines_drawn) == 4  # two panels of two servers


def test_a_load_without_answers_is_shown(tmp_path: Path) -> None:
    group = group_figures([Answer(0.0, 1.0, 503)], 1.0, OBJECTIVE)
    rows = [{"load": "poisson=8", "server": "s", "seconds": 1.0, "groups": {"all": group}}]
    rows.append({"load": "rate", "server": "s", "highest_rate": 0.0, "probes": []})
    assert "0 / 1 / 0" in table(rows)
    write_plot(tmp_path / "plot.svg", rows)
    ElementTree.parse(tmp_path / "plot.svg")


async def test_figures_of_traffic_have_each_group() -> None:
    async with listening() as server:
        traffic = await Agents(2, context=5, turns=2, new=3, pause=0, spread=0).run(
            Connector(server), 0
        )
    found = figures(traffic, OBJECTIVE)
    assert {name: group["whole"] for name, group in found["groups"].items()} == {
        "first turns": 2, "later turns": 2,
    }  # fmt: skip


@pytest.mark.heavy
def test_a_server_that_cannot_be_asked_is_one_line_and_no_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "tools.benchmarks.serving",
        "--url",
        f"http://127.0.0.1:{port}",
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("The server's models cannot be read: ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.heavy
def test_it_needs_the_standard_library_only() -> None:
    program = "import sys, tools.benchmarks.serving.__main__; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append('.'); {program}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
