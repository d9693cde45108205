"""What Triton needs of the machine."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from engines.native.compiler import missing_for_triton


@pytest.fixture
def gcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with this compiler alone, and Python's headers."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    (tmp_path / "Python.h").touch()
    gcc = tmp_path / "gcc"
    gcc.touch(mode=0o755)
    return gcc


def test_with_a_compiler_and_headers_nothing_is_missing(gcc: Path) -> None:
    assert missing_for_triton("3.7.1") is None


def test_without_a_compiler_the_package_that_brings_one_is_named(gcc: Path) -> None:
    gcc.unlink()
    assert "apt-get install gcc" in str(missing_for_triton("3.7.1"))


def test_without_headers_their_package_is_named(gcc: Path) -> None:
    gcc.with_name("Python.h").unlink()
    assert "apt-get install python3-dev" in str(missing_for_triton("3.7.1"))


def test_a_triton_that_builds_nothing_needs_no_compiler(gcc: Path) -> None:
    gcc.unlink()
    assert missing_for_triton("3.9.0") is None
