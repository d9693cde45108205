"""Pages are shown as gpt-oss's published browser (gpt-oss 0.0.9) shows them to the model.

The golden file has pages, calls and what that package gave; how it is recorded is told in
tests/clients/python/record_gpt_oss_browser.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from parts.sandbox.guest.browser import tool
from parts.sandbox.guest.browser.network import Answered, PageRequest

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent / "golden" / "published.json").read_text(encoding="utf-8")
)


def test_pages_and_finds_are_shown_as_the_published_browser_shows_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(asked: PageRequest) -> Answered:
        return Answered(asked.url, GOLDEN["pages"][asked.url], is_html=True)

    monkeypatch.setattr(tool, "read", read)  # no page of a test is on the public web
    browser = tool.Browser()
    for (action, arguments), shown in zip(GOLDEN["calls"], GOLDEN["shown"], strict=True):
        browser.answer(f"{json.dumps({'action': action, 'service': {}})}\n{json.dumps(arguments)}")
        ours = [line.rstrip() for line in capsys.readouterr().out.split("\n")]
        assert ours == [_comparable(line) for line in shown], (action, arguments)


def _comparable(line: str) -> str:
    """Without blanks at the end; results of `find` have their page's own URL, which is cited."""
    return re.sub(r"/find\?pattern=[^)]*\)$", ")", line.rstrip())
