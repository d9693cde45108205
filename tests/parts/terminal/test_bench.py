"""`harmonium bench` as a command: its arguments, our own server, and one that is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from parts.terminal.bench.command import bench
from parts.terminal.bench.fields import cases
from tests.e2e.conftest import Server


def measured(url: str, *arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(bench, ["--url", url, *arguments], standalone_mode=False)
    assert found.exception is None, found.output
    return found.return_value, found.output


@pytest.mark.parametrize("value", ["", "0,1", "1;2", "-1", "x"])
def test_streams_are_numbers(value: str) -> None:
    found = CliRunner().invoke(bench, ["--streams", value])
    assert found.exit_code == 2
    assert "1,8,64" in found.output


@pytest.mark.parametrize(
    ("value", "words"),
    [("agent=3", "agents"), ("agents=3,contxt=4", "it has agents, context"), ("rag=x", "rag=x")],
)
def test_a_load_that_there_is_not_is_a_usage_error(value: str, words: str) -> None:
    found = CliRunner().invoke(bench, ["--load", value])
    assert found.exit_code == 2
    assert words in found.output


def test_no_server_says_how_to_start_one() -> None:
    code, output = measured("http://127.0.0.1:9")
    assert code == 1
    assert "harmonium serve" in output


@pytest.mark.heavy
def test_our_server_is_measured_under_every_load(server: Server, tmp_path: Path) -> None:
    kept = tmp_path / "results.json"
    code, output = measured(
        server.url, "--output", str(kept), "--load", "streams=3,rounds=2,prompt=9,answer=6",
        "--load", "agents=2,context=200,turns=2,new=40,answer=4,pause=0,spread=0",
        "--load", "rag=2,shared=200,own=20,answer=4", "--load", "long=100,answer=4",
        "--load", "bulk=3,prompt=100,answer=4,flex=1,chats=2,rate=20,delay=0,chat_answer=4",
        "--load", "beside=100,streams=1,times=1,settle=0.1,answer=2000",
        "--load", "guided=1,answer=10", "--load", "fields=1,rounds=1,prompt=9,answer=6",
        "--load", "poisson=20,seconds=0.3,prompt=20,answer=8,most_answer=12",
    )  # fmt: skip
    assert code == 0, output
    assert "refused" not in output
    rows = json.loads(kept.read_text())["rows"]
    by_load: dict[str, Any] = {row["load"].partition("=")[0]: row["groups"] for row in rows}
    for row in rows:
        for name, group in row["groups"].items():
            assert (group["rejected"], group["failed"]) == (0, 0), (row["load"], name, group)
    assert by_load["streams"]["all"]["generated_tokens"] == 6 * 6
    assert by_load["agents"]["later turns"]["cached_share"] > 0.5
    assert by_load["long"]["again"]["cached_share"] > by_load["long"]["new"]["cached_share"]
    assert {*by_load["fields"]} == {*cases(is_in_tokens=False)}
    assert {*by_load["bulk"]} == {"bulk", "chat"}
