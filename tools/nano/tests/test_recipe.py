"""The recipe in one go: it goes on where it was stopped, and its log is kept."""

from __future__ import annotations

from pathlib import Path

from tools.nano.recipe import commands, run
from tools.nano.train import STOPPED

LONG = 10.0**6  # seconds that nothing here takes


def test_what_is_done_is_not_done_again_and_a_failure_ends_it(tmp_path: Path) -> None:
    steps = {"pack": ["pack", "--help"], "report": ["report", "--nonsense"], "last": ["pack"]}
    assert run(tmp_path, steps, LONG) == 2
    log = (tmp_path / "recipe.log").read_text()
    assert "pack: exit status 0" in log
    assert "report: exit status 2" in log
    assert "last" not in log
    run(tmp_path, steps, LONG)
    again = (tmp_path / "recipe.log").read_text()
    assert again.count("pack: exit status") == 1
    assert again.count("report: exit status 2") == 2


def test_a_call_without_time_left_stops_and_the_next_goes_on(tmp_path: Path) -> None:
    steps = {"train": ["train", "--help"]}
    assert run(tmp_path, steps, 0) == STOPPED
    assert not (tmp_path / "train.done").exists()
    assert run(tmp_path, steps, LONG) == 0
    assert (tmp_path / "train.done").exists()
    assert "Train nano" in (tmp_path / "recipe.log").read_text()


def test_the_steps_hand_on_their_files(tmp_path: Path) -> None:
    steps = commands(tmp_path, 600, 2)
    assert list(steps) == ["train", "pack", "further", "pack again", "report"]
    for name in ("pack", "further", "report"):
        assert str(tmp_path / "packed") in steps[name]
    assert str(tmp_path / "further" / "state.pt") in steps["pack again"]
