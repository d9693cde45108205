"""What the installer looks at before anything long begins, and what it shows meanwhile."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from profiles.catalogue.catalogue import load
from profiles.hardware.written import parse_hardware
from profiles.selection.selector import survey
from profiles.selection.verdicts import Constraints
from tests.packaging.program import (
    PARTS,
    ROOT,
    install,
    install_helpers,
    installed_checkout,
    prerequisites,
)
from tests.profiles.test_machines import ROWS


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
    monkeypatch.setattr(prerequisites, "MODEL_ROOM", 1e18)
    with pytest.raises(install.CannotInstall, match=r"GB free, and gpt-oss-20b takes"):
        prerequisites.check_cache(settings)
    (tmp_path / "none" / "cache" / "models").mkdir(parents=True)
    prerequisites.check_cache(settings)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The installer alone, on a machine whose nvidia-smi tells of two GPUs."""
    checkout = tmp_path / "checkout"
    (checkout / "tools").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", *(f"tools/{part}" for part in PARTS)):
        shutil.copy(ROOT / name, checkout / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text(
        "#!/bin/sh\n"
        'case "$1" in *memory*) echo "8.9, [N/A]"; echo "9.0, 81000 MiB";; '
        "*) echo NVIDIA L4;; esac\n"
    )
    (programs / "nvidia-smi").chmod(0o755)
    return checkout


def test_the_size_of_the_model_is_told_before_anything_is_fetched(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(bare.parent / "bin"))  # without a compiler: it stops there
    monkeypatch.setenv("NIM_CACHE_PATH", str(bare / "cache"))
    monkeypatch.setenv("NIM_SERVER_PORT", "0")

    def said() -> str:
        command = [sys.executable, "tools/install.py", "--serve"]
        return subprocess.run(command, cwd=bare, capture_output=True, text=True).stdout

    line, _, more = said().partition("\n")
    assert line == (
        f"The start then fetches gpt-oss-120b: up to 65.3 GB more, into {bare / 'cache'}."
    )
    assert more == "On a terminal it asks first, and offers smaller models.\n"
    monkeypatch.setenv("NIM_MODEL_NAME", "nano")
    assert said() == ""


def test_the_size_that_is_told_is_that_of_the_model_that_is_selected() -> None:
    catalogue = load()
    sizes = {
        profile.model.name: sum(file.size_bytes for file in files.files)
        for profile in catalogue.profiles
        if (files := profile.model.artifacts_for("native"))
    }
    smaller = set()
    for machine in {row[0] for row in ROWS}:
        hardware = parse_hardware(machine)
        gpus = [
            f"{'.'.join(map(str, gpu.compute_capability))}, {gpu.free_bytes >> 20} MiB"
            for gpu in hardware.gpus
        ]
        wish = Constraints(installed={"native": None})
        selection = survey(catalogue.profiles, hardware, wish)
        told = prerequisites.default_model(gpus)
        if not selection.compatible or not selection.chosen.placement.gpus:
            assert told is None, machine
            continue
        assert told is not None, machine
        model = selection.chosen.profile.model
        assert told[1] == f"{sizes[told[0]] / 1e9:.1f} GB"
        if told[0] != model.name:
            smaller.add((machine, model.name))
    # Their free memory is that of an H100 beside a small neighbour, which takes 120b.
    assert smaller == {("h200:4g.71gb", "gpt-oss-20b"), ("rtx-pro-5000-72", "gpt-oss-20b")}


def test_a_full_disk_or_a_foreign_folder_is_told_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prerequisites.check_room(tmp_path, 1)
    with pytest.raises(install.CannotInstall, match="GB free"):
        prerequisites.check_room(tmp_path, 1e18)
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root
    with pytest.raises(install.CannotInstall, match="cannot be written"):
        prerequisites.check_room(tmp_path, 1)


def test_a_missing_compiler_is_told_before_gigabytes_are_fetched(
    monkeypatch: pytest.MonkeyPatch, bare: Path
) -> None:
    monkeypatch.setenv("PATH", str(bare.parent / "bin"))
    command = [sys.executable, "tools/install.py"]
    done = subprocess.run(command, cwd=bare, capture_output=True, text=True)
    assert done.returncode == 1
    assert "`apt-get install gcc libc6-dev" in done.stderr
    assert not (bare / ".venv").exists()
