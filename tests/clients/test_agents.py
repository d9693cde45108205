"""Coding agents correct a file: they read it, edit it and say so, configured as documented."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fixture = Callable[..., Any]

pytestmark = pytest.mark.clients

AGENTS = tomllib.loads(Path(__file__).with_name("clients.toml").read_text())["agent"]
DOCUMENTED = "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    "agent", [pytest.param(agent, id=f"{agent['name']}:tool loop") for agent in AGENTS]
)
def test_an_agent_corrects_a_file(
    agent: dict[str, Any],
    server: Any,
    run: Fixture,
    tmp_path: Path,
    installed: Path,
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("I like teh sea.\n")
    task = shlex.quote(f"Correct the spelling mistake in {notes}")
    configuration = agent["configuration"].strip().replace(DOCUMENTED, server.url)
    bin = installed / agent["environment"] / "bin" if "environment" in agent else None
    ended = run(
        "bash", "-c", f"{configuration} {agent['arguments']} {task}", folder=tmp_path, bin=bin
    )
    said = f"{ended.output}\n{ended.log}"
    assert notes.read_text() == "I like the sea.\n", said
    assert ended.status == 0, said
    assert agent.get("says", "I corrected the file.") in ended.output, said
