"""docs/cli.md is what the commands say of themselves."""

from __future__ import annotations

from pathlib import Path

from service.__main__ import COMMANDS
from tools.docs.cli import render

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"


def test_the_page_is_current() -> None:
    assert render() == PAGE.read_text(encoding="utf-8"), "run: make docs"


def test_the_page_has_every_command() -> None:
    page = render()
    assert [name for name in COMMANDS if f"`{name}`" not in page] == []
