"""What `harmonium bench` reads out of answers, what its loads ask, and how it searches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parts.terminal.bench.bodies import Bodies
from parts.terminal.bench.exchange import Connector, Exchange, Server, TimedAnswer, parse
from parts.terminal.bench.figures import Objective, figures, group_figures, median_of, quantile
from parts.terminal.bench.loads import LOADS, planned
from parts.terminal.bench.search import Rate, highest_rate, probe
from parts.terminal.bench.sitting import BenchResults, How, sit
from parts.terminal.bench.table import notes, table
from parts.terminal.bench.traffic import Agents, Poisson, Rag
from parts.terminal.client import ChatError

Answering = Callable[[dict[str, Any]], bytes]

OBJECTIVE = Objective(ttft_s=0.5, s_per_token=0.025)
TOKEN = b'data: {"choices":[{"text":"a","finish_reason":null}],"usage":null}\n\n'
LAST = b'data: {"choices":[{"text":"b","finish_reason":"length"}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":8}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
PLAIN_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
ANSWER = PLAIN_HEAD + TOKEN + LAST + USAGE + DONE
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))


async def answer_to(*reads: bytes) -> TimedAnswer:
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


def whole(asked_at: float, *times: float, num_tokens: int | None = None) -> TimedAnswer:
    num = len(times) if num_tokens is None else num_tokens
    return TimedAnswer(asked_at, times[-1], 200, times, num, 100, 40, is_whole=True)


def test_figures_of_a_group() -> None:
    slow = whole(0.0, *(1.0 + 0.1 * n for n in range(41)))
    good = whole(0.0, *(0.1 + 0.01 * n for n in range(41)))
    rejected = TimedAnswer(0.0, 0.1, 503, retry_after_s=3.0)
    found = group_figures([good, slow, rejected], 10.0, OBJECTIVE)
    assert found["errors"] == {"overloaded": 1}
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
async def listening(answer: Answering | None = lambda _: ANSWER) -> AsyncIterator[Server]:
    """A server that answers each request, or waits until the client hangs up."""
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length:")[1].split()[0])
        body = json.loads(await reader.readexactly(size))
        if answer is not None:
            writer.write(answer(body))
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
        yield Server("s", f"http://127.0.0.1:{port}", "m", is_in_tokens=True)
    finally:
        listener.close()
        while serving:
            await asyncio.wait(serving)


async def test_a_probe_that_can_only_fail_is_cut_short_and_hangs_up() -> None:
    async with listening(None) as server:  # ends when the last client has hung up
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
    load = planned("streams=3,rounds=1,prompt=5,answer=2")
    async with listening() as server:
        counted = [replace(server, name=name) for name in ("a", "b")]
        results = BenchResults(tmp_path / "results.json")
        await sit(results, counted, [load], How(OBJECTIVE, is_warmed=True))
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
    connector = Connector(Server("s", "http://127.0.0.1:1", "m", is_in_tokens=True))
    first, second = (
        json.loads(body)["prompt"]
        for body in Agents(1, context=50, turns=2, new=20).turns_of(Bodies(connector))
    )
    assert (len(first), len(second)) == (70, 90)
    assert second[:70] == first


def test_loads_are_named_with_their_fields() -> None:
    load = planned("agents=24,context=400,pause=0.1").load
    assert load == Agents(24, context=400, pause=0.1)
    assert planned("rate").load == Rate()


@pytest.mark.parametrize("text", ["agent=3", "agents=few", "agents=3,contxt=4"])
def test_a_load_that_makes_no_sense_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(ValueError, match="agent"):
        planned(text)


async def test_figures_of_traffic_have_each_group() -> None:
    async with listening() as server:
        traffic = await Agents(2, context=5, turns=2, new=3, pause=0, spread=0).run(
            Connector(server), 0
        )
    found = figures(traffic, OBJECTIVE)
    assert {name: group["whole"] for name, group in found["groups"].items()} == {
        "first turns": 2, "later turns": 2,
    }  # fmt: skip


def refusing(name: str) -> Answering:
    """A server that knows all fields but one."""

    def answer(body: dict[str, Any]) -> bytes:
        if name not in body:
            return ANSWER
        error = json.dumps({"error": {"message": f"Unknown parameter: {name}"}}).encode()
        return b"HTTP/1.1 400 No\r\nContent-Length: %d\r\n\r\n%s" % (len(error), error)

    return answer


async def rows_of(answer: Answering, *loads: str, repeats: int = 1) -> tuple[BenchResults, str]:
    async with listening(answer) as server:
        results = BenchResults()
        how = How(OBJECTIVE, repeats=repeats)
        await sit(results, [server], [planned(each) for each in loads], how)
    return results, "\n".join(notes(results.rows, results.servers))


async def test_a_field_that_a_server_refuses_is_a_row_without_figures() -> None:
    results, told = await rows_of(refusing("min_p"), "fields=2,rounds=1,prompt=4,answer=3")
    rows = {
        line.split("|")[1].partition(": ")[2].strip(): line
        for line in table(results.rows).splitlines()
    }
    assert "refused 2" in rows["min_p 0.05"]
    assert "refused" not in rows["top_k 40"]
    groups = results.rows[0]["groups"]
    assert groups["plain"]["share"]["ttft_ms"] == 1.0
    assert groups["min_p 0.05"]["share"] == {}
    assert groups["all together"]["errors"] == {"refused": 2}
    assert "min_p 0.05: refused: Unknown parameter: min_p" in told


async def test_a_server_without_ignore_eos_is_measured_too() -> None:
    results, told = await rows_of(refusing("ignore_eos"), "streams=2,rounds=2,prompt=4,answer=3")
    assert results.rows[0]["groups"]["all"]["whole"] == 4
    assert "does not support ignore_eos" in told


async def test_a_server_that_answers_nothing_is_an_error_in_its_words() -> None:
    with pytest.raises(ChatError, match="refused: Unknown parameter: model"):
        await rows_of(refusing("model"), "streams=1")


async def test_repeats_are_medians_and_keep_their_runs() -> None:
    results, _ = await rows_of(lambda _: ANSWER, "streams=1,rounds=1,prompt=4", repeats=3)
    [row] = results.rows
    seconds = sorted(run["seconds"] for run in row["runs"])
    assert row["seconds"] == seconds[1]
    assert median_of([{"a": 1, "b": {}}, {"a": 5}, {"a": 3}]) == {"a": 3, "b": {}}


@pytest.mark.parametrize("in_tokens", [False, True])
async def test_every_load_asks_with_standard_fields_only(in_tokens: bool) -> None:
    """Beside those of OpenAI's API only what a row is about, and `ignore_eos`."""
    standard = {"model", "max_tokens", "temperature", "stream", "stream_options", "ignore_eos"}
    standard |= {"prompt", "messages", "response_format", "service_tier"}
    bodies: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> bytes:
        bodies.append(body)
        return ANSWER

    small = {
        "streams": "streams=2", "poisson": "poisson=20,seconds=0.2", "rag": "rag=2,shared=9,own=4",
        "agents": "agents=2,context=5,new=3,turns=2,pause=0,spread=0", "long": "long=9",
        "bulk": "bulk=2,prompt=9,chats=2,rate=50,delay=0,flex=1", "guided": "guided=1",
        "beside": "beside=9,streams=1,times=1,settle=0", "rate": "rate=20,seconds=0.2,probes=1",
    }  # fmt: skip
    assert {*small} == {*LOADS} - {"fields"}
    async with listening(answer) as server:
        results = BenchResults()
        server = replace(server, is_in_tokens=in_tokens)
        await sit(results, [server], [planned(each) for each in small.values()], How(OBJECTIVE))
    assert {name for body in bodies for name in body} <= standard
    assert all(("prompt" in body) == in_tokens for body in bodies)
    for row in results.rows:
        for group in row.get("groups", {}).values():
            assert group["whole"] == group["requests"]


async def test_questions_share_their_beginning_only() -> None:
    prompts: list[str] = []

    def answer(body: dict[str, Any]) -> bytes:
        prompts.append(body["messages"][0]["content"])
        return ANSWER

    async with listening(answer) as server:
        connector = Connector(replace(server, is_in_tokens=False))
        await Rag(3, shared=20, own=30).run(connector, 0)
    words = [prompt.split() for prompt in prompts]
    assert [len(each) for each in words] == [50, 50, 50]
    assert len({*map(tuple, (each[:20] for each in words))}) == 1
    assert len({*map(tuple, (each[20:] for each in words))}) == 3


async def test_an_answer_that_is_not_streamed_comes_at_once() -> None:
    body = b'{"choices":[{"text":"ab"}],"usage":{"prompt_tokens":4,"completion_tokens":2}}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    answer = await answer_to(head + body)
    assert (answer.is_whole, answer.num_tokens, answer.num_prompt_tokens) == (True, 2, 4)
    assert answer.s_per_token is None
    assert answer.ttft_s is not None


def test_results_of_two_sittings_stand_side_by_side() -> None:
    group = group_figures([whole(0.0, *(1.0 + n for n in range(40)))], 10.0, OBJECTIVE)
    kept = [
        {
            "servers": [{"name": name, "ignores_end": True}],
            "rows": [
                {"load": load, "server": name, "seconds": 10.0, "groups": {"all": group}}
                for load in ("poisson=8", "agents=2")
            ],
        }
        for name in ("ours", "other")
    ]
    rows = BenchResults.merged(kept).rows
    assert [(row["load"], row["server"]) for row in rows] == [
        ("poisson=8", "ours"), ("poisson=8", "other"),
        ("agents=2", "ours"), ("agents=2", "other"),
    ]  # fmt: skip
    lines = table(rows).splitlines()
    assert len(lines) == 6
    assert len({len(line) for line in lines}) == 1
    assert "Errors" not in lines[0]  # nothing to say
