"""The chart and the service agree on the settings."""

import re
from pathlib import Path

import pytest
import yaml

from profiles.catalogue.catalogue import load
from service.settings.constants import constants
from service.settings.settings import env_name, unknown_names

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
    refused = {env_name(field) for field in constants()}
    assert refused <= names
    assert unknown_names(dict.fromkeys(names - refused, "")) == []
    for field, value in constants().items():
        assert f'{env_name(field)}: "it is no longer a setting, but a constant: {value};' in text


def test_the_operators_example_names_a_profile_of_its_model(chart: Path) -> None:
    path = chart / "ci" / "nim-operator-values.yaml"
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    wanted = values["nimOperator"]["profile"]
    models = {profile.id: profile.model.name for profile in load().profiles}
    assert models.get(wanted) == values["model"], "run `make docs`"
