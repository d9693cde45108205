"""Each alert has a runbook, and what it tells to run does run."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

import pytest

from tests import loopback
from tests.guides.run_guides import follow
from tests.monitoring.test_names import check

PAGE: Final = Path(__file__).parents[2] / "docs" / "guides" / "alerts.md"
TEXT: Final = PAGE.read_text(encoding="utf-8")
RUNBOOKS: Final = re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
# Commands that no test runs, by how they begin.
NOT_RUN: Final = {
    "kubectl port-forward": "needs a pod on a node; the port's name is held by tests/chart",
    "kubectl logs": "needs a pod on a node",
    "kubectl exec": "needs a pod on a node; `harmonium doctor` is run, nvidia-smi needs a GPU",
    "kubectl delete pod": "needs a pod on a node; tests/cluster/test_rolling.py replaces pods",
    "kubectl scale": "needs a release; its effect: tests/cluster/test_autoscaling.py",
    "helm rollback": "needs a release; tests/cluster rolls back every value",
    "curl -s -o /dev/null -w '%{http_code}\\n' -X POST": "needs a collector",
    "openssl s_client": "needs a server with a certificate; tests/auth/test_tls.py replaces one",
}


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


QUERIES: Final = [block.strip() for block in blocks("promql")]


@pytest.mark.parametrize(("alert", "text"), RUNBOOKS, ids=[name for name, _ in RUNBOOKS])
def test_each_runbook_has_something_to_run(alert: str, text: str) -> None:
    assert set(re.findall(r"^```(\w+)$", text, re.MULTILINE)) & {"sh", "promql", "console"}


def test_each_command_is_run_or_says_why_not() -> None:
    languages = set(re.findall(r"^```(\w+)$", TEXT, re.MULTILINE))
    assert languages == {"sh", "text", "promql", "console"}, "the others are run below"
    commands = [line for block in blocks("console") for line in block.splitlines()]
    left = {line for line in commands if not line.startswith(tuple(NOT_RUN))}
    assert not left, "write them as `sh`, which is run, or give the reason in NOT_RUN"
    for start in NOT_RUN:
        assert any(line.startswith(start) for line in commands), f"{start} is in no runbook"


def test_queries_ask_for_what_exists() -> None:
    for query in QUERIES:
        check(query)


@pytest.mark.monitoring
@pytest.mark.skipif(not loopback.HAS_IPV4, reason="the page's commands name 127.0.0.1")
def test_the_commands_show_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a server of this machine, as `make guides` does with every guide."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert follow(PAGE) == []
