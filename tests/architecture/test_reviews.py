"""docs/internals/reviews.md names tests that there are."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "reviews.md"


def test_each_point_names_tests_that_exist() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^(?:async )?def (test_\w+)", sources, re.MULTILINE))
    assert set(re.findall(r"`(test_\w+)`", PAGE.read_text())) <= there
