"""The soak's zeros mean something: it sees what is unanswered, leaked, left over or growing."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import httpx2
import psutil
import pytest

from tests.soak import faults as soak_faults
from tests.soak.__main__ import MOST_GROWTH, ZEROS, Soak, complaints, growth, recorded
from tests.soak.page import drawn
from tests.soak.server import Sample
from tests.soak.traffic import Away, Place, Tally

GOOD: dict[str, Any] = dict.fromkeys(ZEROS, 0) | {f"{name}_growth": 1.0 for name in MOST_GROWTH}


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


def test_growth_is_from_the_second_quarter_to_the_last_of_whole_servers() -> None:
    start_up, then, later = [10.0, 20.0], [30.0, 31.0, 31.0, 32.0], [36.0, 37.0]
    samples = [sample(held) for held in (*start_up, *then, *later)]
    samples.insert(3, sample(99.0, is_whole=False))
    assert growth(samples, lambda sample: sample.all_mb) == 6.0
    assert growth(samples, lambda sample: sample.server_mb) == 3.0
    assert growth(samples, lambda sample: sample.files) == 0
    assert growth(samples, lambda sample: sample.disk_mb) == 0  # full all the time


def sample(memory_mb: float, *, is_whole: bool = True) -> Sample:
    return Sample(0.0, {"main": memory_mb / 2, "engine 0": memory_mb / 2}, 5, 4, 3, None, is_whole)


def test_a_connection_may_break_if_its_process_was_killed_and_not_else() -> None:
    tally, now_s = Tally(), time.monotonic()
    broken = httpx2.ReadError("it broke")
    tally.cut("chat", now_s, broken)
    tally.away.append(Away("worker killed", now_s - 2.0, now_s - 1.0))
    tally.cut("chat", now_s - 0.5, broken)  # it was sent afterwards
    tally.cut("chat", now_s - 1.5, httpx2.ReadTimeout("nothing came"))
    assert len(tally.unanswered) == 3
    tally.cut("chat", now_s - 1.5, broken)
    assert dict(tally.outcomes) == {"cut: worker killed": 1}


def test_the_page_has_the_figures_and_a_line_for_each_process() -> None:
    soak = Soak(samples=[sample(10.0), sample(12.0)], counts=[0, 3])
    found = GOOD | {"seconds": 120.0, "requests": 3, "outcomes": {"answered": 3}}
    found |= {"engines_mb_growth": 1, "faults": {"a kill": 1}}
    result = recorded(found, soak, [(1.0, "a kill")])
    page = ElementTree.fromstring(drawn(result))
    texts = [element.text for element in page.iter("{http://www.w3.org/2000/svg}text")]
    assert "3 requests, 0 lost. How they ended:" in texts
    assert {"main", "engine 0"} <= set(texts)


def test_it_complains_of_each_thing_that_must_not_be() -> None:
    assert complaints(GOOD) == []
    for name in GOOD:
        assert len(complaints(GOOD | {name: 100})) == 1


@pytest.mark.parametrize("written_s", [0.0, 0.2], ids=["while full", "while it fills"])
async def test_a_soak_that_ends_with_a_full_disk_leaves_it_empty(
    written_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(folder: Path) -> None:
        """As a small disk is filled, but for its size."""
        time.sleep(written_s)
        (folder / "fill").touch()

    monkeypatch.setattr(soak_faults, "fill", fill)
    server: Any = SimpleNamespace(folder=tmp_path, engine="nano")
    faults = soak_faults.Faults(server, Tally(), Place(""), 1.0, has_disk=True)
    act = next(act for name, _, act in faults._turns() if name == "the disk is full")
    doing = asyncio.ensure_future(act())
    while not faults.is_full or (not written_s and not (tmp_path / "fill").exists()):
        await asyncio.sleep(0.001)
    doing.cancel()
    await asyncio.wait((doing,))
    assert list(tmp_path.iterdir()) == []
    assert not faults.is_full


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
