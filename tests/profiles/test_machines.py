"""What each machine gets: machines.md, a table that an operator can read and judge.

After a wanted change run HARMONIUM_UPDATE_GOLDEN=1 pytest tests/profiles/test_machines.py, read
the difference, and judge the rows that changed: the last column is written by hand.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from profiles.catalogue.catalogue import Catalogue
from profiles.hardware.written import parse_hardware
from profiles.selection.selector import survey
from profiles.selection.verdicts import Constraints, Selection

TABLE: Final = Path(__file__).parent / "machines.md"
INSTALLED: Final[Mapping[str, tuple[str, ...] | None]] = {
    "all": None,
    "native": ("native",),
    "vLLM": ("vllm",),
    "vLLM, TensorRT-LLM": ("vllm", "tensorrt_llm"),
}
NOTES: Final = {  # how a note begins or what it has in it, and the word for it in the table
    "would be preferred": "engine",
    "For gpt-oss-20b on this CPU": "engine",
    "A real model needs more memory": "memory",
    "The context is ": "context",
    "No profile of ": "goal",
    " hosts with ": "hosts",
    "no NVLink": "PCIe",
    "one after another": "pipeline",
    " idle: ": "idle",
    "has not run it there": "not run",
    "serves nothing": "idle",
}


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def is_row(line: str) -> bool:
    return line.startswith("|") and not line.startswith(("| Machine", "| ---"))


LINES: Final = TABLE.read_text(encoding="utf-8").splitlines()
ROWS: Final = [cells_of(line) for line in LINES if is_row(line)]


def answer(catalogue: Catalogue, machine: str, model: str, goal: str, installed: str) -> list[str]:
    """The cells that the selector fills."""
    engines = INSTALLED[installed]
    wish = Constraints(
        model=None if model == "-" else f"gpt-oss-{model}",
        goal=None if goal == "-" else goal,  # type: ignore[arg-type]
        installed=None if engines is None else dict.fromkeys(engines),
    )
    selection = survey(catalogue.profiles, parse_hardware(machine), wish)
    if not selection.compatible:
        return [
            "none: exit code 3",
            "-",
            "-",
            "engine" if "not installed" in selection.remedy else "-",
        ]
    placement = selection.chosen.placement
    size = selection.chosen.profile.num_devices
    return [
        selection.chosen.profile.title,
        f"{placement.num_replicas} x {size}" if placement.gpus else "CPU",
        f"{selection.chosen.max_model_len:,}",
        ", ".join(words_for(selection)) or "-",
    ]


def words_for(selection: Selection) -> list[str]:
    return [next(word for part, word in NOTES.items() if part in note) for note in selection.notes]


@pytest.mark.parametrize("row", ROWS, ids=[" ".join(row[:4]) for row in ROWS])
def test_a_machine_gets_what_the_table_says(catalogue: Catalogue, row: list[str]) -> None:
    if os.environ.get("HARMONIUM_UPDATE_GOLDEN"):
        pytest.skip("the table is being rewritten")
    machine, model, goal, installed, *found, _ = row
    assert answer(catalogue, machine, model, goal, installed) == found


def test_every_row_is_judged_and_none_is_wrong(catalogue: Catalogue) -> None:
    if os.environ.get("HARMONIUM_UPDATE_GOLDEN"):
        TABLE.write_text("\n".join(renewed(catalogue, line) for line in LINES) + "\n")
    assert len(ROWS) >= 80
    assert len({tuple(row[:4]) for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row[-1].startswith(("right", "acceptable")), row


def renewed(catalogue: Catalogue, line: str) -> str:
    if not is_row(line):
        return line
    *given, judgement = (cell for cell in cells_of(line) if cell)
    found = answer(catalogue, *given[:4])
    return f"| {' | '.join([*given[:4], *found, judgement])} |"
