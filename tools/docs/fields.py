"""The tables of fields in docs/api.md, from the texts.yaml beside the schemas; `make docs`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from service.run.texts import WITHOUT_EFFECT, each, files, read

_BLOCK: Final = re.compile(r"<!-- fields of ([^\n]+) -->\n.*?<!-- to here -->", re.DOTALL)
_NAMES: Final = re.compile(r"[\w.\[\]]+(, [\w.\[\]]+)*")


def with_tables(page: str) -> str:
    """The page with the tables of today, each where a comment asks for it by its title."""
    tables = {title: lines for path in files() for title, lines in read(path).tables.items()}

    def table(found: re.Match[str]) -> str:
        title = found[1]
        why = "Why it has none" if WITHOUT_EFFECT in title else "Notes"
        rows = [f"| {_cell(names)} | {said} |" for names, said in tables[title].items()]
        head = [f"<!-- fields of {title} -->", "", f"| Field | {why} |", "|---|---|"]
        return "\n".join([*head, *rows, "", "<!-- to here -->"])

    return _BLOCK.sub(table, page)


def _cell(names: str) -> str:
    if not _NAMES.fullmatch(names):
        return names
    return ", ".join(f"`{name}`" for name in each(names))


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
