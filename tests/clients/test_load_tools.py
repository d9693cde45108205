"""Load tools measure us as they are documented: all requests answered, all of the length asked."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fixture = Callable[..., Any]

pytestmark = pytest.mark.clients

HERE = Path(__file__).parent
TOOLS = {tool["name"]: tool for tool in tomllib.loads((HERE / "clients.toml").read_text())["tool"]}
NUM_REQUESTS, NUM_OUTPUT_TOKENS = 12, 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tools run: a folder that has the tokenizer."""
    folder = tmp_path_factory.mktemp("load")
    program = str(HERE / "write_tokenizer.py")
    subprocess.run([sys.executable, program, str(folder / "tokenizer")], check=True)
    return folder


@pytest.fixture
def measure(run_as_documented: Fixture, folder: Path) -> Fixture:
    """Run a tool; gives what it said and the report it left."""

    def measure(name: str, report: str) -> tuple[str, Any]:
        ended = run_as_documented(TOOLS[name], folder=folder)
        said = f"{ended.output}\n{ended.log}"
        assert ended.status == 0, said
        return said, json.loads((folder / report).read_text())

    return measure


@pytest.mark.parametrize("name", [pytest.param("GuideLLM", id="GuideLLM:streamed chat")])
def test_guidellm(measure: Fixture, name: str) -> None:
    said, report = measure(name, "report.json")
    (benchmark,) = report["benchmarks"]
    requests = benchmark["requests"]["successful"]
    assert benchmark["metrics"]["request_totals"]["errored"] == 0, said
    assert [r["output_tokens"] for r in requests] == [NUM_OUTPUT_TOKENS] * NUM_REQUESTS, said
    assert all(r["inter_token_latency_ms"] > 0 for r in requests), said


@pytest.mark.parametrize("name", [pytest.param("AIPerf", id="AIPerf:streamed chat")])
def test_aiperf(measure: Fixture, name: str) -> None:
    said, report = measure(name, "report/profile_export_aiperf.json")
    assert report["request_count"]["avg"] == NUM_REQUESTS, said
    assert report["request_error_rate"]["avg"] == 0, said
    lengths = report["output_sequence_length"]
    assert lengths["avg"] == lengths["min"] == NUM_OUTPUT_TOKENS, said
    assert report["inter_token_latency"]["avg"] > 0, said
