"""`python -m tools.benchmarks.serving` against a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Server


def measured(server: Server, folder: Path, *arguments: str) -> dict[str, Any]:
    """The rows that the program leaves, by load."""
    json_path = folder / "results.json"
    url = f"nano={server.url}"
    command = [
        sys.executable, "-m", "tools.benchmarks.serving", "--url", url, "--json", str(json_path),
    ]  # fmt: skip
    ended = subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "| nano |" in ended.stdout
    return {row["load"].partition("=")[0]: row for row in json.loads(json_path.read_text())["rows"]}


@pytest.mark.slow
def test_every_load_is_answered_whole(server: Server, tmp_path: Path) -> None:
    rows = measured(
        server,
        tmp_path,
        "poisson=20,seconds=0.5,prompt=20,answer=8,most_answer=12",
        "agents=2,context=200,turns=2,new=40,answer=4,pause=0,spread=0",
        "burst=8,prompt=10,answer=3",
        "long=100,answer=4",
        "beside=100,streams=2,times=1,settle=0.1,answer=2000",
        "guided=1,answer=10",
        "rate=8,seconds=0.5,probes=1,prompt=20,answer=8",
    )
    assert rows["burst"]["groups"]["all"]["whole"] == 8
    later = rows["agents"]["groups"]["later turns"]
    assert later["cached_share"] > 0.5
    assert (
        rows["long"]["groups"]["again"]["cached_share"]
        > rows["long"]["groups"]["new"]["cached_share"]
    )
    assert rows["beside"]["groups"]["streams"]["gap_ms"]
    groups = [group for row in rows.values() for group in row.get("groups", {}).values()]
    for group in [*groups, *rows["rate"]["probes"]]:
        assert (group["rejected"], group["failed"]) == (0, 0), group.get("first_failure")
