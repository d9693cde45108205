"""The chart and the service agree on the settings."""

from pathlib import Path

import pytest
import yaml

from service.settings.settings import Settings, unknown_names

pytestmark = pytest.mark.chart

ENGINE_STOP_S = 10  # what the engine process may take after the drain


def test_scenarios_set_only_what_the_service_reads(chart: Path) -> None:
    for scenario in (chart / "ci").iterdir():
        values = yaml.safe_load(scenario.read_text(encoding="utf-8")) or {}
        assert unknown_names(values.get("environment", {"PATH": ""})) == []


def test_the_grace_period_covers_the_pause_and_the_drain(chart: Path) -> None:
    values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    drain_s = Settings.model_fields["drain_grace_s"].default
    needed_s = values["preStopSleepSeconds"] + drain_s + ENGINE_STOP_S
    assert values["terminationGracePeriodSeconds"] >= needed_s
