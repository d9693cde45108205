"""What each machine gets: tests/golden/selection.csv, hardware x model x goal x engines.

After a wanted change run HARMONIUM_UPDATE_GOLDEN=1 pytest tests/profiles/test_golden.py
and read the difference.
"""

from __future__ import annotations

import csv
import io
import os
import re
from itertools import product
from pathlib import Path

from profiles.catalogue import Catalogue
from profiles.models import Goal
from profiles.selector import survey
from profiles.verdicts import Constraints
from profiles.written import parse_hardware

GOLDEN = Path(__file__).parents[1] / "golden" / "selection.csv"
HARDWARE = (
    "cpu", "l4", "a100-40", "a100x2", "l40sx4", "h100", "h100x8", "h200", "h200x2", "h200x8",
    "b200", "b200x8", "rtx-pro-6000",
)  # fmt: skip
MODELS = (None, "gpt-oss-20b", "gpt-oss-120b")
GOALS: tuple[Goal | None, ...] = (None, "latency", "throughput")
ENGINES = ("native", "native+vllm", "native+vllm+tensorrt_llm")
# How many profiles there are is not what this table is about.
COUNTS = re.compile(r"(\d+ of )?(the )?\d+ profiles")


def table(catalogue: Catalogue) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("hardware", "model", "goal", "engines", "selected", "reason"))
    for hardware, model, goal, engines in product(HARDWARE, MODELS, GOALS, ENGINES):
        wish = Constraints(model=model, goal=goal, installed=dict.fromkeys(engines.split("+")))
        selection = survey(catalogue.profiles, parse_hardware(hardware), wish)
        selected = selection.chosen.profile.title if selection.compatible else "none"
        reason = COUNTS.sub("the profiles", selection.reason)
        writer.writerow((hardware, model, goal, engines, selected, reason))
    return text.getvalue()


def test_every_machine_gets_the_profile_of_the_golden_table(catalogue: Catalogue) -> None:
    actual = table(catalogue)
    if os.environ.get("HARMONIUM_UPDATE_GOLDEN"):
        GOLDEN.write_text(actual, encoding="utf-8")
    assert actual.splitlines() == GOLDEN.read_text(encoding="utf-8").splitlines()
