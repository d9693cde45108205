"""docs/faults.md names the test of each fault, and every named test exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from engines.parts import folders

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/faults.md").read_text()
ROWS = re.findall(r"^\| (?!Fault|---)([^|]+) \|.*\| (.*) \|$", TEXT, re.M)


@cache
def functions_in(path: Path) -> set[str]:
    return {*re.findall(r"^(?:async )?def (\w+)", path.read_text(encoding="utf-8"), re.M)}


def test_the_table_is_there() -> None:
    assert len(ROWS) >= 14


@pytest.mark.parametrize(("fault", "tests"), ROWS, ids=[fault for fault, _ in ROWS])
def test_every_fault_has_tests_that_exist(fault: str, tests: str) -> None:
    named = re.findall(r"`(\S+?)::(\w+)`", tests)
    assert named, f"no test for: {fault}"
    for path, name in named:
        file = ROOT / "tests" / path
        if path.startswith("parts/") and path.split("/")[1] not in folders() and not file.exists():
            continue  # the part was removed
        assert name in functions_in(file), f"{path}::{name}"
