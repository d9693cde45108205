"""Coding agents correct a file: they read it, edit it and say so, configured as documented."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fixture = Callable[..., Any]

pytestmark = pytest.mark.clients

AGENTS = tomllib.loads(Path(__file__).with_name("clients.toml").read_text())["agent"]


@pytest.mark.parametrize(
    "agent", [pytest.param(agent, id=f"{agent['name']}:tool loop") for agent in AGENTS]
)
def test_an_agent_corrects_a_file(
    agent: dict[str, Any], run_as_documented: Fixture, tmp_path: Path
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("I like teh sea.\n")
    task = f"Correct the spelling mistake in {notes}"
    ended = run_as_documented(agent, task, folder=tmp_path)
    said = f"{ended.output}\n{ended.log}"
    assert notes.read_text() == "I like the sea.\n", said
    assert ended.status == 0, said
    assert agent.get("says", "I corrected the file.") in ended.output, said
