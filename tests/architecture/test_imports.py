"""What import-linter does not say: no file imports, over any way, itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import grimp

from engines.parts import folders
from tests.architecture.picture import PACKAGES


def test_no_circle_of_files() -> None:
    """Imports for types alone count: who reads one file of a circle has to read them all."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    open_ends = {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}
    while leaves := {name for name, imported in open_ends.items() if not imported}:
        open_ends = {
            name: imported - leaves for name, imported in open_ends.items() if name not in leaves
        }
    # What is left lies on a circle, or leads to one.
    assert open_ends == {}


TESTS: Final = Path(__file__).parents[1] / "parts"
IMPORTED: Final = re.compile(r"^(?:from|import) (?:tests\.)?parts\.(\w+)", re.MULTILINE)


def test_the_tests_of_a_part_import_no_other_part() -> None:
    """What speaks of several is outside these folders, or imports them in a test that needs()."""
    names = folders()
    others = {
        f"{file.relative_to(TESTS)}: {other}"
        for name in names
        for file in (TESTS / name).rglob("*.py")
        for other in IMPORTED.findall(file.read_text(encoding="utf-8"))
        if other != name and other in names
    }
    assert others == set(), "move it to tests/parts/pairs/"
