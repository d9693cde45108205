"""`harmonium bench`: what it asks, what its figures mean, and what it says of what went wrong."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from rich.console import Console

from parts.terminal.bench.command import bench
from parts.terminal.bench.fields import CASES, shares_of_plain, show_fields
from parts.terminal.bench.report import as_json, notes, show
from parts.terminal.bench.run import sweep
from parts.terminal.bench.stream import Timed
from parts.terminal.bench.sweep import Bench, BenchLoad, Point, Spread, point_of
from parts.terminal.client import ChatError
from service.run.server import create_app

Handler = Callable[[httpx2.Request], httpx2.Response]

LOAD = BenchLoad("m", prompt_words=4, max_tokens=8, rounds=2)
SCRIPT = "<|channel|>final<|message|>one two three four five six seven eight<|return|>"
CHUNK = 'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4}}\n\n'
DONE = "data: [DONE]\n\n"


def other_server(handler: Handler) -> Bench:
    return Bench("http://other", None, LOAD, httpx2.MockTransport(handler))


def streamed(text: str) -> Handler:
    return lambda _: httpx2.Response(200, text=text, headers={"content-type": "text/event-stream"})


async def test_our_server_is_measured(make_runtime: Any) -> None:
    runtime = make_runtime(SCRIPT)
    await runtime.engine.start()
    load = BenchLoad(runtime.model.id, prompt_words=4, max_tokens=12, rounds=2)
    measured = Bench("http://ours", None, load, httpx2.ASGITransport(create_app(runtime)))
    await measured.warm_up()
    point = await measured.run(3)
    await runtime.engine.stop()
    assert measured.load.ignores_end
    assert (point.streams, point.requests, point.failed) == (3, 6, 0)
    assert point.output_tokens == 6 * 12
    assert point.prompt_tokens is not None
    assert point.prompt_tokens > 4
    assert point.ttft is not None
    assert 0 < point.ttft.p50 <= point.ttft.p99
    assert point.tokens_per_s == pytest.approx(72 / point.wall_s)


async def test_no_two_prompts_are_alike() -> None:
    asked: list[dict[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(json.loads(request.content))
        return streamed(CHUNK + DONE)(request)

    await other_server(answer).run(3)
    prompts = {body["messages"][0]["content"] for body in asked}
    assert len(prompts) == len(asked) == 6
    assert all(len(prompt.split()) == 4 for prompt in prompts)


async def test_a_server_without_ignore_eos_is_measured_too() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if b"ignore_eos" in request.content:
            error = {"message": "Unknown parameter: ignore_eos"}
            return httpx2.Response(400, json={"error": error})
        return streamed(CHUNK * 2 + DONE)(request)

    measured = other_server(answer)
    await measured.warm_up()
    point = await measured.run(1)
    assert not measured.load.ignores_end
    assert (point.failed, point.output_tokens, point.prompt_tokens) == (0, 4, None)
    told = " ".join(notes(measured.load, [point]))
    assert "does not support ignore_eos" in told
    assert "reports no usage" in told


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (streamed(CHUNK), "before its end marker"),
        (streamed(DONE), "no text"),
        (streamed('data: {"error":{"message":"the engine stopped"}}\n\n'), "the engine stopped"),
        (lambda _: httpx2.Response(429, json={"error": {"message": "too many"}}), "too many"),
        (lambda _: httpx2.Response(502, text="bad gateway"), "HTTP 502: bad gateway"),
    ],
)
async def test_what_failed_is_counted_and_told(handler: Handler, words: str) -> None:
    point = await other_server(handler).run(2)
    assert (point.failed, point.output_tokens, point.ttft) == (4, 0, None)
    assert words in notes(LOAD, [point])[-1]
    with pytest.raises(ChatError, match=words):
        await other_server(handler).warm_up()


def test_the_figures_are_what_their_names_say() -> None:
    answers = [
        Timed(0.0, (1.0, 1.5, 2.0), 2.5, 10, 5),
        Timed(0.0, (3.0, 3.5, 5.0), 6.0, 10, 5),
    ]
    point = point_of(2, 3, 10.0, 9.0, answers, Counter({"too many": 1}))
    assert point.tokens_per_s == 1.0
    assert point.ttft == Spread(3.0, 3.0)
    assert point.inter_token == Spread(0.5, 1.5)  # (5 - 3) / (5 - 1); the longest gap
    assert point.e2e == Spread(6.0, 6.0)
    assert point.tokens_per_event == pytest.approx(10 / 6)
    assert point.failed == 1
    told = " ".join(notes(LOAD, [point]))
    assert "most of a CPU core" in told
    assert "Some events carry several tokens" in told
    assert "1 of 3 failed at 2 streams: too many" in told


def test_a_person_sees_a_table_and_bars_and_a_program_json() -> None:
    point = point_of(8, 8, 2.0, 0.1, [Timed(0.0, (0.25, 0.5), 0.5, 10, 2)], Counter())
    written = io.StringIO()
    show(Console(file=written, width=120), "http://s", LOAD, [point])
    text = written.getvalue()
    assert "m at http://s: 4 words in, 8 tokens out, 2 rounds" in text
    assert "250 / 250" in text
    assert "█" in text
    found = json.loads(as_json("http://s", LOAD, [point]))
    assert found["points"][0]["ttft"] == {"p50": 0.25, "p99": 0.25}
    assert found["load"]["max_tokens"] == 8


@pytest.mark.parametrize("value", ["", "0,1", "1;2", "-1", "x"])
def test_streams_are_numbers(value: str) -> None:
    found = CliRunner().invoke(bench, ["--streams", value])
    assert found.exit_code == 2
    assert "1,8,64" in found.output


def test_no_server_says_how_to_start_one() -> None:
    found = CliRunner().invoke(bench, ["--url", "http://127.0.0.1:9"], standalone_mode=False)
    assert found.return_value == 1
    assert "harmonium serve" in found.output


async def test_each_field_is_measured_beside_a_plain_request(make_runtime: Any) -> None:
    """Ours takes every case; shares are of the time per token with as many streams."""
    runtime = make_runtime(SCRIPT)
    await runtime.engine.start()
    load = BenchLoad(runtime.model.id, prompt_words=4, max_tokens=12, rounds=1)
    ours = Bench("http://ours", None, load, httpx2.ASGITransport(create_app(runtime)))
    points: list[Point] = []
    await sweep(ours, (1, 2), CASES, points)
    await runtime.engine.stop()
    assert [(p.streams, p.fields) for p in points] == [(n, name) for n in (1, 2) for name in CASES]
    assert not any(point.errors for point in points)
    of_two = points[len(CASES) :]
    assert of_two[0].inter_token is not None
    for point, share in zip(of_two, shares_of_plain(points)[len(CASES) :], strict=True):
        assert point.inter_token is not None
        assert share == pytest.approx(point.inter_token.p50 / of_two[0].inter_token.p50)


async def test_a_field_that_a_server_refuses_is_a_row_without_figures() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if "min_p" in json.loads(request.content):
            return httpx2.Response(400, json={"error": {"message": "Unknown parameter: min_p"}})
        return streamed(CHUNK * 4 + DONE)(request)

    points: list[Point] = []
    await sweep(other_server(answer), (1,), CASES, points)
    written = io.StringIO()
    show_fields(Console(file=written, width=120), "http://s", LOAD, points)
    rows = {line[9:41].strip(): line.split() for line in written.getvalue().splitlines()}
    assert rows["plain"][-1] == "1.00"
    assert rows["min_p 0.05"][-2:] == ["-", "-"]
    assert "2 of 2 failed at 1 streams with min_p 0.05: Unknown parameter" in written.getvalue()
