"""tests/regressions.md is whole: every known bug has its row, every named test exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from engines.parts import folders

ROOT = Path(__file__).parents[2]
NUM_BUGS = 68
ROWS = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", (ROOT / "tests/regressions.md").read_text(), re.M)


@cache
def functions_in(path: Path) -> set[str]:
    return {*re.findall(r"^(?:async )?def (\w+)", path.read_text(encoding="utf-8"), re.M)}


def test_every_bug_has_a_row() -> None:
    assert [int(number) for number, _ in ROWS] == list(range(1, NUM_BUGS + 1))


@pytest.mark.parametrize("answer", [answer for _, answer in ROWS], ids=[n for n, _ in ROWS])
def test_every_row_names_tests_that_exist_or_says_why_not(answer: str) -> None:
    named = re.findall(r"`(\S+?)::(\w+)`", answer)
    assert named or answer.startswith(("not ours: ", "open: "))
    for path, name in named:
        file = ROOT / "tests" / path
        if path.startswith("parts/") and path.split("/")[1] not in folders() and not file.exists():
            continue  # the part was removed
        assert name in functions_in(file)
