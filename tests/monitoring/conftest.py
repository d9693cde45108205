"""What operators are given to watch a server with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

FILES = Path(__file__).parents[2] / "charts" / "harmonium" / "files"


@pytest.fixture(scope="session")
def rules_path() -> Path:
    return FILES / "prometheus-rules.yaml"


@pytest.fixture(scope="session")
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FILES / "grafana-dashboard.json").read_text())
    return loaded


@pytest.fixture(scope="session")
def panels(dashboard: dict[str, Any]) -> dict[str, list[str]]:
    """The expressions of each panel, by its title."""
    return {
        panel["title"]: [target["expr"] for target in panel["targets"]]
        for panel in dashboard["panels"]
        if panel["type"] != "row"
    }


@pytest.fixture(scope="session")
def alerts(rules_path: Path) -> dict[str, str]:
    """The expression of each alert, by its name."""
    groups = yaml.safe_load(rules_path.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    return {rule["alert"]: rule["expr"] for rule in rules if "alert" in rule}


@pytest.fixture(scope="session")
def instantly() -> Callable[[str], str]:
    """An expression without Grafana's variables."""

    def fill(expression: str) -> str:
        everything = ((name, ".*") for name in ("$model", "$namespace", "$job", "$instance"))
        for name, value in (*everything, ("$__rate_interval", "10s"), ("$__range", "1m")):
            expression = expression.replace(name, value)
        return expression

    return fill
