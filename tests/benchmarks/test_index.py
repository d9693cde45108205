"""tools/benchmarks/README.md names every program and says where every results file came from."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[2] / "tools" / "benchmarks"
TEXT: Final = (FOLDER / "README.md").read_text(encoding="utf-8")


def test_every_program_has_a_row() -> None:
    named = set(re.findall(r"python -m (tools\.benchmarks[.a-z_]*)", TEXT))
    programs = {
        f"tools.benchmarks.{path.stem}"
        for path in FOLDER.glob("*.py")
        if "ArgumentParser(" in path.read_text(encoding="utf-8")
    }
    packages = {"tools.benchmarks"}
    helpers = {"tools.benchmarks.peer_checkpoint", "tools.benchmarks.overload"}
    assert named - packages >= programs - helpers - {"tools.benchmarks.__main__"}
    assert all(find_spec(name) for name in named)


def test_every_results_file_has_its_program_and_commit() -> None:
    rows = re.findall(r"^\| `([^`]+\.json)` \| .+ \| [0-9a-f]{8} \|$", TEXT, re.MULTILINE)
    assert sorted(rows) == sorted(path.name for path in (FOLDER / "results").iterdir())
