"""Make build/lowest: Harmonium with the lowest versions that pyproject.toml allows.

    .venv/bin/python tools/lowest.py

Lowest is what pyproject.toml names itself; what those need in turn is the newest they allow. torch
is that of this environment: its lowest version has no build for the CPU alone, and runs on GPUs
(make test-gpu). transformers, which some tests compare with, goes with none of these.
"""

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from installer import ROOT, CannotInstall, Installer, say

FOLDER = ROOT / "build" / "lowest"
PYTHON = FOLDER / "bin" / "python"
UV = str(Path(sys.executable).parent / "uv")
TORCH = f"torch=={version('torch')}"
LEFT_OUT = ("transformers", "mypy", "ruff", "types-", "uv", "pip>")
PINNED = ("anthropic", "openai", "hypothesis", "pytest")  # whose releases change what tests see


def make() -> None:
    """Make the environment anew; raises CannotInstall."""
    say(f"Making {FOLDER.relative_to(ROOT)} of the lowest versions ...")
    command = [UV, "--no-config", "venv", "--quiet", "--clear", "--python", sys.executable]
    if subprocess.run([*command, str(FOLDER)]).returncode:
        raise CannotInstall(f"{FOLDER} could not be made; uv's reason is above.")
    installer = Installer(PYTHON, UV)
    torch = written("torch.txt", [TORCH])
    installer.install("--quiet", "--resolution", "lowest-direct", "--constraint", torch, ".")
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    lowest = written("lowest.txt", [*frozen(), *(pin for pin in pins if pin.startswith(PINNED))])
    installer.install("--quiet", "--constraint", lowest, "--editable", ".", *of_the_tests())


def of_the_tests() -> "list[str]":
    """What the tests of the fast lane need beside Harmonium."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = project["optional-dependencies"]["test"]
    return [requirement for requirement in named if not requirement.startswith(LEFT_OUT)]


def frozen() -> "list[str]":
    """What is installed."""
    command = [UV, "pip", "freeze", "--python", str(PYTHON), "--exclude-editable"]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [line for line in listed.splitlines() if "==" in line]


def written(name: str, lines: "list[str]") -> str:
    path = FOLDER / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


if __name__ == "__main__":
    try:
        make()
    except CannotInstall as error:
        sys.exit(f"Cannot install the lowest versions: {error}")
