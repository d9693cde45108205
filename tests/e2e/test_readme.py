"""The README's commands, run as they stand but for the port.

`make test-all` would run itself and `make image` and `make chart` are suites of their own:
of those, make itself must say that it knows how. tests/e2e/test_terminal.py types `make serve`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.conftest import README, ROOT, blocks, without_make

if TYPE_CHECKING:
    from tests.e2e.conftest import Server

DRY = tuple(f"make {t}" for t in ("serve", "test", "test-all", "image", "chart", "bench", "nano"))


def commands() -> list[str]:
    """Each shell command of the README, continued lines joined, comments taken off."""
    lines = "".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [command for line in lines if (command := re.sub(r"\s+#.*", "", line).strip())]


def run(command: list[str]) -> str:
    """Run a command in the checkout; fail with its output if it fails."""
    result = subprocess.run(
        command, capture_output=True, text=True, env=plain_environment(), cwd=ROOT, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def plain_environment() -> dict[str, str]:
    """That of a shell that does not know `harmonium` yet, beside a server that may be running."""
    ours = str(Path(sys.executable).parent)
    folders = [folder for folder in os.environ["PATH"].split(":") if folder != ours]
    return os.environ | {"PATH": ":".join(folders), "NIM_SERVER_PORT": "0"}


def typed() -> list[str]:
    """What a reader types but for what serves, with the activation that comes before it."""
    activation, lines = "", []
    for command in commands():
        if command.startswith(". "):
            activation = f"{command} && "
        elif command not in ("harmonium serve", *DRY):
            is_on_path = not command.startswith("harmonium")
            lines.append(command if is_on_path else activation + command)
    return lines


@pytest.mark.parametrize("command", typed())
def test_a_command_does_what_the_readme_says(server: Server, command: str) -> None:
    output = run(["sh", "-c", command.replace("http://127.0.0.1:8000", server.url)])
    if command.startswith("curl"):
        assert json.loads(output)["choices"][0]["message"]["content"]
    elif "harmonium" in command:
        assert "nano" in output


def test_without_make_three_commands_serve(server: Server) -> None:
    assert server.process.args == ["sh", "-c", without_make()]
    server.wait_for_ready()


@pytest.mark.parametrize("command", [c for c in commands() if c in DRY])
def test_make_knows_the_target(command: str) -> None:
    make = shutil.which("make")
    assert make is not None
    target = command.split()[1]
    subprocess.run([make, "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("program", blocks("python"))
def test_the_python_example_prints_an_answer(server: Server, program: str) -> None:
    program = program.replace("http://127.0.0.1:8000", server.url)
    assert run([sys.executable, "-c", program]).strip()


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), f"README links to {target}"
