"""Write the figures of `harmonium plan` into the pages that show some anew: `make docs` does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

from click.testing import CliRunner

from parts.plan.command import plan
from tests.guides.run_guides import blocks_of, pattern_of

_DOCS: Final = Path(__file__).parents[3] / "docs"
PAGES: Final = (_DOCS / "guides" / "sizing.md", _DOCS / "scale.md")
_NUMBER: Final = re.compile(r"\d[\d,.]*(?<=\d)")


def refreshed(page: str) -> str:
    """The page with each line that a plan promises as the plan says it now.

    Raises ValueError for a line that a plan no longer says with any figures.
    """
    for block in blocks_of(page):
        if not block.code.startswith("harmonium plan "):
            continue
        output = CliRunner().invoke(plan, shlex.split(block.code)[2:]).output
        for line in block.shown:
            page = page.replace(f"\n{line}\n", f"\n{_said_now(line, output)}\n")
    return page


def _said_now(line: str, output: str) -> str:
    if pattern_of(line).search(output):
        return line
    alike = re.compile(_NUMBER.sub("#", re.escape(line)).replace("#", _NUMBER.pattern))
    found = alike.search(output)
    if found is None:
        raise ValueError(f"shown, and no longer what the plan says: {line}")
    return found[0]


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(refreshed(path.read_text(encoding="utf-8")), encoding="utf-8")
