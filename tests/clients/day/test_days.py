"""Codex and Claude Code through a day of 40 turns: what their users read, and what the server said.

Each day has pictures and documents that tools read, 40 tools of an MCP server, web searches, an
engine that is killed amid an answer, a session that is resumed, and a compaction.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.clients.conftest import NODE_BIN, ROOT, Server, serving
from tests.clients.day import turns
from tests.clients.day.sessions import Agent, Claude, Codex
from tests.clients.day.turns import Turn

pytestmark = pytest.mark.clients

TOOLS = ("-m", "tests.clients.day.tools")
REQUEST = re.compile(r" (GET|HEAD|POST) (\S+) -> (\d+|client left)(?: \((\w+)\))?")
# What Claude Code asks of any server, without a key.
PROBES = {("HEAD", "/api/hello")}


@pytest.fixture(scope="module")
def browser() -> Iterator[str]:
    """The URL of a tool server that searches."""
    command = [sys.executable, *TOOLS, "browser"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
        process.kill()


@pytest.fixture
def server(browser: str, tmp_path: Path) -> Iterator[Server]:
    """A server of the day's own, whose engine may be killed."""
    folder = tmp_path / "server"
    folder.mkdir()
    script = Path(__file__).with_name("model.py")
    with serving(folder, script=script, environment={"NIM_BROWSER_MCP_URL": browser}) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the agent works."""
    folder = tmp_path / "harbour"
    folder.mkdir()
    turns.prepare(folder)
    return folder


def environment(server: Server, folder: Path, **more: str) -> dict[str, str]:
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    path = os.pathsep.join([str(NODE_BIN), os.environ["PATH"]])
    own = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8"}
    return {**own, "HARMONIUM_API_KEY": server.key, **more}


def documented(agent: str, server: Server) -> str:
    """The line that `harmonium clients` prints."""
    command = [sys.executable, "-m", "service", "clients", agent, "--url", server.url]
    known = os.environ | {"HARMONIUM_API_KEY": server.key}
    return subprocess.check_output(command, env=known, text=True, cwd=ROOT).strip()


def spend(agent: Agent, day: Sequence[Turn], first: int, kill: Callable[[], None]) -> None:
    for number, turn in enumerate(day, first):
        strike = kill if turn.is_struck else None
        said = agent.turn(f"Turn {number}: {turn.task}", strike)
        assert turn.says in said, turn


def engine_killer(server: Server) -> Callable[[], None]:
    def kill() -> None:
        children = psutil.Process(server.pid).children()
        next(c for c in children if "engines.process.host" in c.cmdline()).kill()

    return kill


def check_log(server: Server) -> None:
    """Nothing was refused, and the engine died once."""
    requests = [found.groups() for line in server.log if (found := REQUEST.search(line))]
    refused = [each for each in requests if not each[2].startswith(("1", "2"))]
    assert [each for each in refused if each[:2] not in PROBES] == []
    assert len(requests) > 60
    assert sum("restarting it in" in line for line in server.log) == 1


@pytest.mark.parametrize("agent", [pytest.param("codex", id="Codex CLI:day")])
def test_codex(server: Server, folder: Path, agent: str) -> None:
    given = environment(server, folder)
    tools = {"command": sys.executable, "args": [*TOOLS, "stdio"]}
    written = ", ".join(f"{name} = {json.dumps(value)}" for name, value in tools.items())
    line = f"{documented(agent, server)} -c 'mcp_servers.harbour={{ {written} }}'"
    command = ["bash", "-c", f'exec {line} "$@"', "codex"]
    odd = {
        "photo": turns.UNREAD,
        "chart": "application/pdf",
        "sound": "audio",
        "closed": "The office is closed.",
    }
    kill = engine_killer(server)
    with Codex(command, folder, given) as codex:
        codex.begin()
        spend(codex, turns.morning(folder, "%PDF-1.4", odd), 1, kill)
        thread = codex.thread
        assert codex.end() == 0
    with Codex(command, folder, given) as codex:
        codex.begin(thread)
        spend(codex, turns.noon(folder), 21, kill)
        codex.compact()
        spend(codex, turns.afternoon(folder), 31, kill)
        assert codex.end() == 0
    last = ["exec", "--skip-git-repo-check", "resume", thread, "Turn 41: recall"]
    said = subprocess.check_output([*command, *last], cwd=folder, env=given, text=True)
    assert turns.RECALLED in said
    assert (folder / "log.txt").read_text() == "The Albatros is in\n"
    check_log(server)
    assert sum("GET /v1/responses -> 101" in line for line in server.log) == 3, "not WebSocket"


@pytest.mark.parametrize("agent", [pytest.param("claude", id="Claude Code:day")])
def test_claude_code(server: Server, folder: Path, agent: str) -> None:
    given = environment(server, folder)
    tools = {"command": sys.executable, "args": [*TOOLS, "stdio"]}
    mcp = json.dumps({"mcpServers": {"harbour": tools}})
    options = ["--permission-mode", "acceptEdits", "--mcp-config", mcp]
    allowed = ["--allowedTools", "mcp__harbour,WebSearch"]
    line = f'{documented(agent, server)} "$@"'
    command = ["bash", "-c", line, "claude", *options, *allowed]
    odd: dict[str, Any] = {
        "photo": turns.UNREAD,
        "chart": "application/pdf",
        "sound": "audio",
        "closed": "The office is closed.",
    }
    kill = engine_killer(server)
    with Claude(command, folder, given) as claude:
        spend(claude, turns.morning(folder, "this model reads text only", odd), 1, kill)
        session = claude.session
        assert claude.end() == 0
    with Claude([*command, "--resume", session], folder, given) as claude:
        spend(claude, turns.noon(folder), 21, kill)
        claude.compact()
        spend(claude, turns.afternoon(folder), 31, kill)
        assert claude.end() == 0
    last = ["--continue", "--print", "Turn 41: recall"]
    said = subprocess.check_output([*command, *last], cwd=folder, env=given, text=True)
    assert turns.RECALLED in said
    assert (folder / "log.txt").read_text() == "The Albatros is in\n"
    check_log(server)
