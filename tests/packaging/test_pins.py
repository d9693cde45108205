"""constraints.txt can be installed from the public index, whatever this machine has of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("pins", ROOT / "tools" / "packaging" / "pins.py")
assert SPEC is not None
assert SPEC.loader is not None
pins = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pins)

# llguidance asks for glibc 2.31: Debian 11, Ubuntu 20.04, RHEL 9 and what is newer.
LINUX, ARM, MAC = "x86_64-manylinux_2_31", "aarch64-manylinux_2_31", "aarch64-apple-darwin"
# The oldest and the newest Python.
PLACES = [(platform, python) for platform in (LINUX, ARM, MAC) for python in ("3.11", "3.14")]


@pytest.fixture(scope="module")
def public_index() -> None:
    """Skip where not even one package can be looked up."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--quiet", "--refresh"]
    command += ["--python", sys.executable, "--default-index", pins.PUBLIC_INDEX, "-"]
    environment = os.environ | {"UV_HTTP_RETRIES": "0", "UV_HTTP_TIMEOUT": "15"}
    asked = subprocess.run(command, input=b"six", capture_output=True, env=environment)
    if asked.returncode:
        pytest.skip(f"{pins.PUBLIC_INDEX} does not answer: {asked.stderr.decode()}")


@pytest.mark.slow  # only new pins can break it, and the next test says that they are made
@pytest.mark.usefixtures("public_index")
@pytest.mark.parametrize(("platform", "python"), PLACES)
def test_the_pins_resolve_to_wheels_of_the_public_index(
    platform: str, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MACOSX_DEPLOYMENT_TARGET", "14.0")
    where = ("--no-config", "--python-platform", platform, "--python-version", python)
    try:
        pins.compile_pins(*where, "--constraint", str(pins.PINS))
    except subprocess.CalledProcessError as error:
        pytest.fail(f"no way to install on {platform} with Python {python}:\n{error.stderr}")


@pytest.mark.usefixtures("public_index")
def test_the_pins_are_those_of_pyproject(tmp_path: Path) -> None:
    copy = tmp_path / "constraints.txt"
    copy.write_text(pins.PINS.read_text())
    pins.pin(copy)
    assert copy.read_text() == pins.PINS.read_text(), "run `make pins`"


def test_a_package_with_two_versions_is_refused() -> None:
    compiled = "numpy==2.3.0 ; python_version < '3.12'\nnumpy==2.4.6 ; python_version >= '3.12'\n"
    with pytest.raises(ValueError, match="two versions of numpy"):
        pins.without_markers(compiled)
