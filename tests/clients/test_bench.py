"""`harmonium bench` at a server with API keys and an engine of a fixed rate."""

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
    "streams=400,rounds=1,answer=50",
    "poisson=50,seconds=4,prompt=100,answer=50",
    "agents=8,context=500,turns=3,new=100,answer=20",
    "rate=20,seconds=2,prompt=100,answer=50,probes=3",
)


def test_all_is_answered(run: Fixture, server: Any, tmp_path: Path) -> None:
    kept = tmp_path / "results.json"
    command = (sys.executable, "-m", "service", "bench", "--tokens", "--url", server.url)
    loads = [word for load in LOADS for word in ("--load", load)]
    patient = ("--ttft-ms", "600000", "--token-ms", "600000")  # which any machine keeps
    more = ("--key", server.key, "--output", str(kept), *patient)
    ended = run(*command, *more, *loads, folder=ROOT)
    assert ended.status == 0, ended.log
    streams, poisson, agents, rate = json.loads(kept.read_text())["rows"]
    groups = [group for row in (streams, poisson, agents) for group in row["groups"].values()]
    for group in groups:
        assert group["requests"] == group["whole"], ended.output
    assert streams["groups"]["all"]["generated_tokens"] == 400 * 50
    assert agents["groups"]["later turns"]["cached_share"] > 0.5
    assert [each["rate"] for each in rate["probes"]] == [20, 30, 45]
    assert rate["highest_rate"] == 45  # the last that was tried
