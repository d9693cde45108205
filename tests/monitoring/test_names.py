"""Dashboard and alerts speak of series and labels that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from engines.parts import folders
from service.telemetry.series import Series
from tools.docs.series import all_series

_SERIES = re.compile(r"\b((?:harmonium|process)_\w+)(?:\{([^}]*)\})?")
DOCS = Path(__file__).parents[2] / "docs"
_OF_SCRAPE = ("namespace", "job", "instance")  # Prometheus adds them to every series
_BY = re.compile(r"\bby \(([^)]*)\)")


def known() -> dict[str, Series]:
    """Every name that a sample can have."""
    names = {}
    for series in all_series():
        parts = ("_bucket", "_sum", "_count") if series.kind == "histogram" else ("",)
        for part in parts:
            names[series.family + part if part else series.sample] = series
    return names


def check(expression: str) -> None:
    names = known()
    used = _SERIES.findall(expression)
    assert used or "harmonium:" in expression, f"{expression} asks for nothing of ours"
    labels: set[str] = {"le", *_OF_SCRAPE}
    for name, selector in used:
        assert name in names, f"{name} is not a series"
        labels |= set(names[name].labels)
        for label in re.findall(r"(\w+)\s*[=!]", selector):
            own = (*names[name].labels, *_OF_SCRAPE)
            assert label in own, f"{name} has no label {label}"
    for listed in _BY.findall(expression):
        assert {label.strip() for label in listed.split(",")} <= labels


@pytest.mark.skipif(
    not {"host_kv", "sleep", "usage"} <= folders().keys(),
    reason="a part that has panels was removed",
)
def test_panels_ask_for_what_exists(panels: dict[str, list[str]]) -> None:
    for expressions in panels.values():
        for expression in expressions:
            check(expression)


def test_alerts_ask_for_what_exists(alerts: dict[str, str]) -> None:
    for expression in alerts.values():
        check(expression)


def test_every_alert_has_a_section_in_the_guide(rules_path: Path) -> None:
    groups = yaml.safe_load(rules_path.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    guide = (DOCS / "guides" / "alerts.md").read_text()
    sections = re.findall(r"^## (\w+)$", guide, re.MULTILINE)
    assert sorted(sections) == sorted(rule["alert"] for rule in rules)
    for rule in rules:
        link = f"docs/guides/alerts.md#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == link


def test_every_kind_of_thing_we_measure_has_a_panel(panels: dict[str, list[str]]) -> None:
    text = str(panels)
    for series in all_series():
        if series.name not in LEFT_OUT:
            assert series.family in text, f"no panel shows {series.family}"


def test_the_dashboard_can_be_imported(dashboard: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    assert dashboard["uid"]
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert variables == {"datasource", "namespace", "job", "instance", "model"}
    for panel in dashboard["panels"]:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"


# Sizes and means, and what few deployments have: of use in a query, not in an overview.
LEFT_OUT = {
    "cached_prompt_tokens",
    "decode_time_seconds",
    "engine_accepted_drafts",
    "engine_drafts",
    "engine_failed_handovers",
    "engine_handover_blocks",
    "engine_handover_bytes",
    "engine_handover_seconds",
    "engine_handovers",
    "engine_step_tokens",
    "engine_kv_block_tokens",
    "engine_kv_blocks",
    "http_request_duration_seconds",
    "inference_time_seconds",
    "key_expires_timestamp_seconds",
    "request_choices",
    "request_completion_tokens",
    "request_longest_choice_tokens",
    "request_max_tokens",
    "request_prompt_tokens",
    "time_per_output_token_seconds",
    "tls_certificate_expires_timestamp_seconds",
    "unread_parts",
}
