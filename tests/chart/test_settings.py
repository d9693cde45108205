"""The chart and the service agree on the settings."""

import re
from pathlib import Path

import pytest
import yaml

from service.settings.settings import unknown_names

pytestmark = pytest.mark.chart


def test_scenarios_set_only_what_the_service_reads(chart: Path) -> None:
    for scenario in (chart / "ci").iterdir():
        values = yaml.safe_load(scenario.read_text(encoding="utf-8")) or {}
        names = values.get("environment", {}) | values.get("environmentFrom", {})
        assert unknown_names(names or {"PATH": ""}) == []


def test_the_chart_sets_only_what_the_service_reads(chart: Path) -> None:
    """Nor does it refuse a name that is none of the service's."""
    text = "".join(
        path.read_text(encoding="utf-8")
        for path in (chart / "templates").iterdir()
        if path.is_file()
    )
    names = set(re.findall(r"\bNIM_[A-Z0-9_]+[A-Z0-9]\b", text))
    assert "NIM_DRAIN_GRACE_S" in names
    assert unknown_names(dict.fromkeys(names, "")) == []
