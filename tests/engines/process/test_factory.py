"""Engines by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

import engines.factory
from engines.errors import EngineStartError
from engines.factory import EngineSpec, create, installed_engines


def test_every_known_engine_is_usable_or_says_why_not() -> None:
    known = installed_engines()
    assert list(known) == ["native", "fake", "vllm", "tensorrt_llm", "llama_cpp"]
    assert known["native"] is None
    assert known["fake"] is None
    assert known["vllm"] == "not installed: the adapter is not part of this release"


def test_native_without_torch_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.factory, "find_spec", lambda name: None)
    assert installed_engines()["native"] == (
        "not installed: PyTorch is missing (pip install torch)"
    )
    with pytest.raises(EngineStartError, match=r"PyTorch is missing.*usable engines: fake"):
        create(EngineSpec("native"))


def test_an_unknown_native_option_is_an_error() -> None:
    with pytest.raises(EngineStartError, match="'model_dirr' is unknown; did you mean 'model_dir'"):
        create(EngineSpec("native", {"model_dirr": "/nowhere"}))


def test_knowing_the_engines_does_not_load_them() -> None:
    check = (
        "import sys, engines.process.supervisor, engines.factory; "
        "engines.factory.installed_engines(); "
        "sys.exit('torch' in sys.modules or 'engines.fake.engine' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
