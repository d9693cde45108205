"""A checkout that was never installed, beside what it needs: it has no metadata, and serves."""

from __future__ import annotations

import signal
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from tests import plain
from tests.service.run.serving import Serving

ROOT = Path(__file__).parents[2]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter that has all but Harmonium's metadata, and so do those that it starts."""
    folder = tmp_path / "venv"
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "harmonium" not in path.name.lower():
            (site / path.name).symlink_to(path)
    (site / "checkout.pth").write_text(f"{ROOT}\n")
    return folder / "bin" / "python"


@pytest.mark.heavy
def test_a_checkout_without_metadata_serves_and_knows_its_release(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    code = "import importlib.metadata as m; m.version('harmonium')"
    assert "PackageNotFoundError" in _run(python, "-c", code)
    for argument in ("version", "--version"):
        assert _run(python, "-m", "service", argument) == f"harmonium {release}\n"
    monkeypatch.setattr(sys, "executable", str(python))
    server = Serving(
        {"script": [200002]}, NIM_CACHE_PATH=str(tmp_path / "cache"), NIM_LOG_LEVEL="INFO"
    )
    try:
        assert f"Harmonium {release}" in server.wait_for("Harmonium ")
        assert plain.get(f"{server.url}/v1/version").json()["release"] == release
        assert plain.get(f"{server.url}/v1/license").json()["name"] == "Apache-2.0"
        assert f'version="{release}"' in plain.get(f"{server.url}/v1/metrics").text
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_code() == 0
    finally:
        server.end()


def _run(python: Path, *arguments: str) -> str:
    pipe = subprocess.PIPE
    return subprocess.run(
        [python, *arguments], stdout=pipe, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    ).stdout
