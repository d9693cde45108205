"""A large download that no setting names is a question on a terminal, with smaller choices."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from profiles.hardware.written import parse_hardware
from service.cli import download_question
from service.cli.download_question import model_instead
from service.run import pythons, startup
from service.settings.settings import load


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal before an H100 with room for everything, and nothing downloaded."""
    monkeypatch.setattr(startup, "visible_hardware", lambda: parse_hardware("h100"))
    monkeypatch.setattr(pythons, "installed_engines", lambda: {"native": None})
    monkeypatch.setattr(pythons, "cpu_only_engines", dict)
    monkeypatch.setattr(startup, "check_place", lambda *_: None)
    monkeypatch.setattr(download_question, "free_bytes", lambda _folder: 512 * 10**9)
    return Terminal()


def answered(
    monkeypatch: pytest.MonkeyPatch, screen: Terminal, cache: Path, keys: str, **given: Any
) -> str | None:
    monkeypatch.setattr(sys, "stderr", screen)  # here, for pytest sets it before each test
    monkeypatch.setattr(sys, "stdin", Terminal(keys))
    settings = load({"cache_path": cache, **given})
    return model_instead(settings, startup.prepare(settings))


def test_the_sizes_and_smaller_models_are_shown_first(
    monkeypatch: pytest.MonkeyPatch, screen: Terminal, tmp_path: Path
) -> None:
    assert answered(monkeypatch, screen, tmp_path, "\n") is None
    shown = screen.getvalue()
    assert "gpt-oss-120b has to be downloaded" in shown
    assert "(512.0 GB free)" in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith("  ")]
    assert [row[:4] for row in rows[:2]] == [
        ["1", "gpt-oss-120b", "65.3", "GB"],
        ["2", "gpt-oss-20b", "13.8", "GB"],
    ]
    assert rows[2][1] == "nano"
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "serve gpt-oss-20b` does not ask" in " ".join(plain.split())
    assert all(len(line) <= 100 for line in shown.splitlines())


def test_the_model_that_is_chosen_is_served_instead(
    monkeypatch: pytest.MonkeyPatch, screen: Terminal, tmp_path: Path
) -> None:
    assert answered(monkeypatch, screen, tmp_path, "2\n") == "gpt-oss-20b"
    assert answered(monkeypatch, screen, tmp_path, "7\n3\n") == "nano"
    with pytest.raises(click.Abort):
        answered(monkeypatch, screen, tmp_path, "")


def test_nobody_is_asked_who_named_a_model_or_has_no_terminal(
    monkeypatch: pytest.MonkeyPatch, screen: Terminal, tmp_path: Path
) -> None:
    assert answered(monkeypatch, screen, tmp_path, "2\n", model_name="gpt-oss-120b") is None
    assert answered(monkeypatch, screen, tmp_path, "2\n", jsonl_logging=True) is None
    monkeypatch.setattr(screen, "isatty", lambda: False)
    assert answered(monkeypatch, screen, tmp_path, "2\n") is None
    assert screen.getvalue() == ""
