"""Which Python runs which engine."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from engines.factory import Engines, installed_engines
from profiles.errors import InvalidConstraint
from service.run import pythons
from service.run.pythons import engines_here, python_of
from service.settings.errors import SettingsError
from service.settings.settings import load

ABSENT = "not installed: a wheel"


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pythons._ask_once.cache_clear()
    monkeypatch.setattr(pythons, "NOTE", tmp_path / "harmonium.json")
    ours = {"native": None, "vllm": ABSENT, "tensorrt_llm": ABSENT, "llama_cpp": ABSENT}
    monkeypatch.setattr(pythons, "installed_engines", lambda: ours)
    monkeypatch.setattr(pythons, "cpu_only_engines", dict)


def python_with(folder: Path, *engines: str, cpu_only: str = "") -> Path:
    """A Python whose environment has these engines, as far as it is asked for them."""
    installed = {name: None if name in engines else ABSENT for name in installed_engines()}
    answer = {"installed": installed, "cpu_only": {cpu_only: "built for CPUs only"}}
    program = folder / f"python-of-{'-'.join(engines)}"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.mark.heavy
def test_each_engine_runs_in_the_python_that_is_named_for_it(tmp_path: Path) -> None:
    vllm = python_with(tmp_path, "vllm", cpu_only="vllm")
    tensorrt = python_with(tmp_path, "tensorrt_llm")
    settings = load({"engine_python": f"vllm={vllm}, tensorrt-llm={tensorrt}"})
    here = engines_here(settings)
    assert here.installed["vllm"] is None
    assert here.installed["tensorrt_llm"] is None
    assert here.installed["llama_cpp"] == ABSENT
    assert here.cpu_only == {"vllm": "built for CPUs only"}
    assert python_of(settings, "native") is None
    assert python_of(settings, "vllm") == vllm
    assert python_of(settings, "tensorrt_llm") == tensorrt


@pytest.mark.heavy
def test_one_python_stands_for_all_engines(tmp_path: Path) -> None:
    settings = load({"engine_python": str(python_with(tmp_path, "vllm"))})
    here = engines_here(settings)
    assert here.installed["vllm"] is None
    assert here.installed["tensorrt_llm"] == ABSENT
    assert python_of(settings, "vllm") == tmp_path / "python-of-vllm"


@pytest.mark.heavy
def test_what_the_installer_made_is_found_without_a_setting(tmp_path: Path) -> None:
    python = python_with(tmp_path, "vllm")
    engines = {"vllm": {"python": str(python)}, "tensorrt_llm": {"python": "/gone/python"}}
    pythons.NOTE.write_text(json.dumps({"engines": engines}))
    settings = load({})
    assert engines_here(settings).installed["vllm"] is None
    assert engines_here(settings).installed["tensorrt_llm"] == ABSENT
    assert python_of(settings, "vllm") == python
    named = load({"engine_python": f"vllm={sys.executable}"})
    assert engines_here(named).installed["vllm"] is None  # that one has none: the installer's has
    assert python_of(named, "vllm") == python


@pytest.mark.heavy
def test_a_python_that_cannot_be_asked_is_named() -> None:
    with pytest.raises(InvalidConstraint, match="NIM_ENGINE_PYTHON: /nowhere cannot run an engine"):
        engines_here(load({"engine_python": "vllm=/nowhere"}))


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("vlm=/opt/python", "'vlm' is not an engine"),
        ("vllm=/a,vllm=/b", "each engine once"),
        ("vllm=", "write engine=path"),
    ],
)
def test_a_setting_that_cannot_be_read_says_why(value: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        load({"engine_python": value})


def test_an_own_engine_needs_no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pythons, "installed_engines", lambda: {"native": None})
    assert engines_here(load({})) == Engines({"native": None}, {})
