"""The soak's zeros mean something: it sees what is unanswered, leaked, left over or growing."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest

from tests.soak.__main__ import complaints, growth
from tests.soak.server import Sample
from tests.soak.traffic import Tally

GOOD: dict[str, Any] = {
    "unanswered": 0,
    "markup_leaks": 0,
    "running_at_the_end": 0.0,
    "waiting_at_the_end": 0.0,
    "exit_code": 0,
    "server_mb_growth": 1.0,
    "server_files_growth": 0,
}


@pytest.mark.parametrize(
    ("kind", "status", "text", "outcome"),
    [
        ("stream chat", 200, 'data: {"choices": []}\n\ndata: [DONE]\n\n', "answered"),
        ("stream messages", 200, 'event: x\ndata: {"type":"message_stop"}\n\n', "answered"),
        ("stream chat", 200, 'data: {"error":{}}\n\ndata: [DONE]\n\n', "error in the stream"),
        ("chat", 503, '{"error": {"code": "engine_dead"}}', "503 engine_dead"),
        ("messages", 529, '{"error": {"details": {"error_code": "x"}}}', "529 x"),
    ],
)
def test_an_answer_is_counted_by_what_it_says(
    kind: str, status: int, text: str, outcome: str
) -> None:
    tally = Tally()
    tally.judge(kind, status, text)
    assert dict(tally.outcomes) == {outcome: 1}
    assert tally.unanswered == tally.leaks == []


@pytest.mark.parametrize(
    ("kind", "status", "text"),
    [
        ("stream chat", 200, 'data: {"choices": []}\n\n'),
        ("stream responses", 200, 'data: {"type":"response.created"}\n\n'),
        ("chat", 500, "Internal Server Error"),
        ("chat", 502, "[]"),
    ],
)
def test_what_breaks_off_or_is_no_error_of_ours_is_unanswered(
    kind: str, status: int, text: str
) -> None:
    tally = Tally()
    tally.judge(kind, status, text)
    assert len(tally.unanswered) == 1
    assert not tally.outcomes


def test_markup_in_an_answer_is_a_leak() -> None:
    tally = Tally()
    tally.judge("chat", 200, '{"content": "one <|end|> two"}')
    assert tally.leaks == ['chat: {"content": "one <|end|> two"}']


def test_growth_is_from_the_second_quarter_to_the_last() -> None:
    start_up, then, later = [10.0, 20.0], [30.0, 31.0, 31.0, 32.0], [36.0, 37.0]
    samples = [Sample(0.0, held, 5, None, None) for held in (*start_up, *then, *later)]
    assert growth(samples, lambda sample: sample.server_mb) == 6.0
    assert growth(samples, lambda sample: sample.server_files) == 0


def test_it_complains_of_each_thing_that_must_not_be() -> None:
    assert complaints(GOOD) == []
    for name in GOOD:
        assert len(complaints(GOOD | {name: 100})) == 1


@pytest.mark.slow  # what `make soak` starts, and no user
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_soak_that_is_ended_leaves_no_server_behind(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.soak"]
    soak = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    started: list[psutil.Process] = []
    try:
        assert soak.stdout is not None
        assert b"unanswered" in soak.stdout.readline()
        started = psutil.Process(soak.pid).children(recursive=True)
        assert started
        soak.send_signal(number)
        assert soak.wait(60) != 0
        assert psutil.wait_procs(started, timeout=60)[1] == []
    finally:
        soak.kill()
        soak.communicate()
        for process in started:
            if process.is_running():
                process.kill()
