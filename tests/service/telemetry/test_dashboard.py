"""The Grafana dashboard's colours and words: without them Grafana paints 0 engines up green."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[3] / "charts" / "harmonium" / "files" / "grafana-dashboard.json"
PANELS = [p for p in json.loads(FILE.read_text())["panels"] if p["type"] != "row"]


def defaults(title: str) -> dict[str, Any]:
    panel = next(panel for panel in PANELS if panel["title"] == title)
    return dict(panel["fieldConfig"]["defaults"])


def colour(title: str, value: float) -> str:
    """The colour that Grafana gives a value."""
    steps = defaults(title)["thresholds"]["steps"]
    return str([s["color"] for s in steps if s["value"] is None or value >= s["value"]][-1])


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["title"]))
def test_every_panel_says_what_it_shows_and_has_colours_of_its_own(panel: dict[str, Any]) -> None:
    assert panel["description"]
    found = panel["fieldConfig"]["defaults"]
    assert found["unit"]
    # Grafana's own thresholds are green, and red from 80 on.
    assert "thresholds" in found or found["color"]["mode"] in ("fixed", "palette-classic")


@pytest.mark.parametrize(
    ("title", "good", "bad"),
    [
        ("Engine up", 1, 0),
        ("5xx share", 0, 0.2),
        ("KV cache in use", 0.5, 0.98),
        ("Engine restarts", 0, 3),
    ],
)
def test_good_is_green_and_bad_is_red(title: str, good: float, bad: float) -> None:
    assert (colour(title, good), colour(title, bad)) == ("green", "red")


def test_an_engine_that_is_down_is_called_down() -> None:
    [mapping] = defaults("Engine up")["mappings"]
    assert mapping["options"]["0"] == {"text": "DOWN", "color": "red", "index": 0}
