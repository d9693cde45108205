"""tests/faults/index.yaml names the tests of each fault in docs/faults.md, and they exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from engines.parts import folders

ROOT = Path(__file__).parents[2]
FAULTS = re.findall(r"^\| (?!Fault)([^|-][^|]*) \|", (ROOT / "docs/faults.md").read_text(), re.M)
INDEX: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests/faults/index.yaml").read_text())


@cache
def functions_in(path: Path) -> set[str]:
    return {*re.findall(r"^(?:async )?def (\w+)", path.read_text(encoding="utf-8"), re.M)}


def test_every_fault_of_the_page_has_its_tests_in_order() -> None:
    assert len(FAULTS) >= 14
    assert [row["fault"] for row in INDEX] == FAULTS


@pytest.mark.parametrize("row", INDEX, ids=[row["fault"] for row in INDEX])
def test_every_fault_has_tests_that_exist(row: dict[str, Any]) -> None:
    assert row["tests"], f"no test for: {row['fault']}"
    for test in row["tests"]:
        path, _, name = test.partition("::")
        file = ROOT / "tests" / path
        if path.startswith("parts/") and path.split("/")[1] not in folders() and not file.exists():
            continue  # the part was removed
        assert name in functions_in(file), test
