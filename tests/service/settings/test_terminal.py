"""What commands write is as wide as the terminal, and names commands that a new shell finds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.settings.terminal import program, runnable, wrapped

OWN = Path(sys.prefix) / "bin" / "harmonium"


def test_lines_are_as_wide_as_asked_and_commands_stay_whole() -> None:
    lines = wrapped("Install it: `python3 tools/install.py llama-cpp`, then go on.", 40, "- ", "  ")
    assert lines == ["- Install it:", "  `python3 tools/install.py llama-cpp`,", "  then go on."]


@pytest.mark.heavy
@pytest.mark.parametrize("is_activated", [False, True])
def test_a_command_that_is_named_starts_in_a_new_shell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_activated: bool
) -> None:
    plain = "/usr/bin:/bin"
    monkeypatch.setenv("PATH", f"{OWN.parent}:{plain}" if is_activated else plain)
    monkeypatch.setenv("VIRTUAL_ENV", str(sys.prefix) if is_activated else "")
    for folder, begins in ((Path(sys.prefix).parent, ".venv/"), (tmp_path, str(OWN.parent))):
        monkeypatch.chdir(folder)
        told = runnable("`harmonium --help` says more").split("`")[1]
        assert told.startswith(begins)
        shell = ["env", "-i", f"PATH={plain}", "sh", "-c", told]  # nothing is activated in it
        ended = subprocess.run(shell, cwd=folder, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        assert "serve" in ended.stdout


def test_what_is_on_the_path_of_every_shell_needs_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "harmonium").symlink_to(OWN)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert program() == "harmonium"
