"""What the log says of a download that runs."""

from __future__ import annotations

import sys

import pytest

from profiles.download.progress import Progress, amount, span


def test_how_far_it_is_and_how_long_it_will_take() -> None:
    now = [0.0]
    progress = Progress("gpt-oss-20b", 10_000_000_000, 1_000_000_000, clock=lambda: now[0])
    now[0] = 9.9
    progress.add(1_000_000_000)
    assert progress.line() == "gpt-oss-20b: 2.0 of 10.0 GB (20%), 101 MB/s, about 1 min 19 s left"


def test_a_line_that_grew_slow_is_told_as_it_is_now() -> None:
    now = [0.0]
    progress = Progress("gpt-oss-20b", 10_000_000_000, clock=lambda: now[0])
    now[0] = 20.0
    progress.add(1_000_000_000)  # 50 MB/s, and then next to nothing
    for _ in range(7):
        now[0] += 15
        progress.add(1_200_000)
    assert progress.line() == "gpt-oss-20b: 1.0 of 10.0 GB (10%), 80 kB/s, about 31 h 13 min left"


def test_a_narrow_terminal_gets_one_line_that_does_not_wrap(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    clock = iter(range(0, 100, 10))
    with Progress("gpt-oss-20b", 10**10, clock=lambda: float(next(clock))) as progress:
        progress.add(10**9)
    drawn = capsys.readouterr().err.strip("\n").split("\r")
    assert drawn[-1].startswith("gpt-oss-20b: 1.0 of 10.0 GB")
    assert max(map(len, drawn)) < 60


def test_little_is_told_in_megabytes() -> None:
    now = [0.0]
    progress = Progress("nano", 30_000_000, clock=lambda: now[0])
    now[0] = 2.0
    progress.add(3_000_000)
    assert progress.line() == "nano: 3.0 of 30.0 MB (10%), 1.5 MB/s, about 18 s left"


def test_the_first_bytes_make_no_estimate() -> None:
    now = [0.0]
    progress = Progress("nano", 136_700_000, clock=lambda: now[0])
    now[0] = 2.0
    progress.add(98)
    assert progress.line() == "nano: 0.0 of 136.7 MB (0%), 0 kB/s"


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [(13_761_264_768, "13.8 GB"), (27_868_174, "27.9 MB"), (1806, "2 kB")],
)
def test_sizes_read_as_one_says_them(num_bytes: int, words: str) -> None:
    assert amount(num_bytes) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(4.4, "4 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations_read_as_one_says_them(seconds: float, words: str) -> None:
    assert span(seconds) == words
