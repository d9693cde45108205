"""`python -m tools.benchmarks.serving` at a server with API keys and an engine of a fixed rate."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fixture = Callable[..., Any]

pytestmark = pytest.mark.clients

ROOT = Path(__file__).parents[2]
LOADS = (
    "burst=400,answer=50",
    "poisson=50,seconds=4,prompt=100,answer=50",
    "agents=8,context=500,turns=3,new=100,answer=20",
    "rate=20,seconds=2,prompt=100,answer=50,probes=3",
)


def test_all_is_answered(run: Fixture, server: Any, tmp_path: Path) -> None:
    kept = tmp_path / "results.json"
    command = (sys.executable, "-m", "tools.benchmarks.serving", "--url", server.url)
    ended = run(*command, "--api-key", server.key, "--json", str(kept), *LOADS, folder=ROOT)
    assert ended.status == 0, ended.log
    burst, poisson, agents, rate = json.loads(kept.read_text())["rows"]
    groups = [group for row in (burst, poisson, agents) for group in row["groups"].values()]
    for group in groups:
        assert group["requests"] == group["whole"], ended.output
    assert burst["groups"]["all"]["generated_tokens"] == 400 * 50
    assert agents["groups"]["later turns"]["cached_share"] > 0.5
    assert rate["highest_rate"] >= 20
