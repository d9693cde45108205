"""What the installer looks at before anything long begins, and what it shows meanwhile."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.program import PARTS, ROOT, install, install_helpers, installed_checkout


def test_a_terminal_has_one_line_of_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = tmp_path / "said"
    said.write_text("Collecting torch\nDownloading torch\nWARNING: what nobody needs\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    with said.open("rb") as output, (tmp_path / "log").open("wb") as log:
        assert install_helpers.follow(output, log)[:2] == ["Collecting torch", "Downloading torch"]
    assert (tmp_path / "log").read_bytes() == said.read_bytes()
    shown = capsys.readouterr().out
    assert "\n" not in shown
    assert all(len(line) < 40 for line in shown.split("\r"))
    assert "Downloading torch" in shown
    assert "WARNING" not in shown


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return installed_checkout(tmp_path / "checkout", gpu="NVIDIA L4")


def looked_at(checkout: Path, shell: str = "make serve", **variables: str) -> str:
    """What `make serve`, typed into a new shell, says before it installs: nothing, or a fault."""
    typed = shell.replace("make serve", f"{sys.executable} tools/install.py --serve")
    command = ["env", "-i", *(f"{name}={value}" for name, value in variables.items())]
    done = subprocess.run(
        [*command, "sh", "-c", typed], cwd=checkout, capture_output=True, text=True
    )
    assert done.returncode == bool(done.stderr), done.stderr
    assert done.stdout == ""
    return done.stderr


def test_a_port_in_use_is_told_with_a_command_that_works(checkout: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = looked_at(checkout, NIM_SERVER_PORT=str(port), PATH="/bin", HOME="/root")
        assert f"port {port} is in use. Try `NIM_SERVER_PORT=" in said
        assert looked_at(checkout, said.split("`")[1], PATH="/bin", HOME="/root") == ""


def test_a_gpus_model_needs_a_cache_which_is_told_with_a_command_that_works(
    checkout: Path, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA L4\n")
    (programs / "nvidia-smi").chmod(0o755)
    with_gpu = {"PATH": f"{programs}:/bin", "NIM_SERVER_PORT": "0"}
    said = looked_at(checkout, **with_gpu, HOME="/dev/null")
    assert "the model cache /dev/null/.cache/harmonium cannot be written" in said
    assert looked_at(checkout, said.split("`")[1], **with_gpu, HOME="/dev/null") == ""
    assert looked_at(checkout, **with_gpu, HOME="/dev/null", NIM_MODEL_NAME="nano") == ""
    assert looked_at(checkout, PATH="/bin", NIM_SERVER_PORT="0", HOME="/dev/null") == ""


def test_a_cache_without_room_for_a_gpus_model_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"NIM_CACHE_PATH": str(tmp_path / "none" / "cache")}
    monkeypatch.setattr(install, "MODEL_ROOM", 1e18)
    with pytest.raises(install.CannotInstall, match=r"GB free, and gpt-oss-20b takes"):
        install.check_cache(settings)
    (tmp_path / "none" / "cache" / "models").mkdir(parents=True)
    install.check_cache(settings)


def test_a_full_disk_or_a_foreign_folder_is_told_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install.check_room(tmp_path, 1)
    with pytest.raises(install.CannotInstall, match="GB free"):
        install.check_room(tmp_path, 1e18)
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root
    with pytest.raises(install.CannotInstall, match="cannot be written"):
        install.check_room(tmp_path, 1)


def test_a_missing_compiler_is_told_before_gigabytes_are_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "tools").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", *(f"tools/{part}" for part in PARTS)):
        shutil.copy(ROOT / name, checkout / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA L4\n")
    (programs / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    command = [sys.executable, "tools/install.py"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 1
    assert "`apt-get install gcc libc6-dev" in done.stderr
    assert not (checkout / ".venv").exists()
