"""Coding agents as `harmonium clients` configures them: they correct a file, and fill a context."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.day.files import PNG
from tests.clients.model import NUM_LONG

Fixture = Callable[..., Any]

pytestmark = pytest.mark.clients

# Of usual length in tokens: some agents count characters.
TIDE = "the water in the harbour stood high at noon, and the boats came home with the tide."
WENT_ON = r"I went on with the summary\."
AGENTS = tomllib.loads(Path(__file__).with_name("clients.toml").read_text())["agent"]


@pytest.mark.parametrize(
    "agent", [pytest.param(agent, id=f"{agent['name']}:tool loop") for agent in AGENTS]
)
def test_an_agent_corrects_a_file(
    agent: dict[str, Any], run_as_documented: Fixture, tmp_path: Path
) -> None:
    correct(agent, run_as_documented, tmp_path)


def correct(agent: dict[str, Any], run_as_documented: Fixture, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("I like teh sea.\n")
    task = f"Correct the spelling mistake in {notes}"
    ended = run_as_documented(agent, task, folder=tmp_path)
    said = f"{ended.output}\n{ended.log}"
    assert notes.read_text() == "I like the sea.\n", said
    assert ended.status == 0, said
    assert agent.get("says", "I corrected the file.") in ended.output, said


@pytest.mark.parametrize(
    "agent", [pytest.param(agent, id=f"{agent['name']}:small context") for agent in AGENTS]
)
def test_an_agent_corrects_a_file_in_a_small_context(
    agent: dict[str, Any], run_as_documented: Fixture, small_server: Any, tmp_path: Path
) -> None:
    correct(agent, partial(run_as_documented, at=small_server), tmp_path)


@pytest.mark.parametrize(
    "agent",
    [pytest.param(a, id=f"{a['name']}:picture") for a in AGENTS if a.get("looks", True)],
)
def test_an_agent_goes_on_after_a_picture(
    agent: dict[str, Any], run_as_documented: Fixture, server: Any, tmp_path: Path
) -> None:
    """No later request is refused for it, and a picture that is sent is a line of the prompt."""
    (tmp_path / "quay.png").write_bytes(PNG)
    num_before = len(server.log)
    ended = run_as_documented(agent, f"Look at the picture {tmp_path}/quay.png", folder=tmp_path)
    said = f"{ended.output}\n{ended.log}"
    assert ended.status == 0, said
    assert agent.get("looked", "I went on without seeing it.") in ended.output, said
    refused = [line for line in server.log[num_before:] if "/v1/" in line and " -> 4" in line]
    assert refused == []


@pytest.mark.parametrize(
    "agent", [pytest.param(agent, id=f"{agent['name']}:long session") for agent in AGENTS]
)
def test_an_agent_goes_on_when_its_context_is_full(
    agent: dict[str, Any], run_as_documented: Fixture, small_server: Any, tmp_path: Path
) -> None:
    said = read_much(partial(run_as_documented, at=small_server), agent, tmp_path)
    assert re.search(agent.get("long_session", WENT_ON), said), said


@pytest.mark.parametrize(
    "agent", [pytest.param(agent, id=f"{agent['name']}:overflow") for agent in AGENTS]
)
def test_an_agent_knows_an_overflow(
    agent: dict[str, Any], run_as_documented: Fixture, lesser_server: Any, tmp_path: Path
) -> None:
    """It believes in a larger context than is served, until the server says that it is full."""
    run = partial(run_as_documented, at=lesser_server, believed=131_072)
    said = read_much(run, agent, tmp_path)
    assert re.search(agent.get("overflow", WENT_ON), said), said


def read_much(run: Fixture, agent: dict[str, Any], folder: Path) -> str:
    """Have an agent read more than the context holds, and give what it said."""
    texts = ["".join(f"{n}.{line}: {TIDE}\n" for line in range(100)) for n in range(NUM_LONG)]
    for number, text in enumerate(texts, 1):
        (folder / f"long-{number}.txt").write_text(text)
    (folder / "notes.txt").write_text("".join(texts))  # aider sends it whole
    ended = run(agent, f"Read the long files in {folder}/long-1.txt and so on", folder=folder)
    return f"{ended.output}\n{ended.log}"
