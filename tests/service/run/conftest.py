"""One H200 whose settings choose what is launched, and servers with the scripted engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from profiles.hardware.written import parse_hardware
from profiles.store import store
from service.run import pythons, startup
from service.run.startup import Launch, prepare
from service.settings.settings import load
from tests.service.run.serving import Serving

Fixture = Callable[..., Any]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Path | None]]:
    """One H200 with every engine installed; the folders that are asked for are noted."""
    asked: list[tuple[Path, Path | None]] = []

    def resolve(_profile: Any, cache_dir: Path, model_path: Path | None) -> Path:
        asked.append((cache_dir, model_path))
        return model_path or cache_dir / "models"

    engines = dict.fromkeys(("native", "vllm", "tensorrt_llm", "llama_cpp"))
    monkeypatch.setattr(startup, "visible_hardware", lambda: parse_hardware("h200"))
    monkeypatch.setattr(pythons, "installed_engines", lambda: engines)
    monkeypatch.setattr(pythons, "cpu_only_engines", dict)
    monkeypatch.setattr(store, "resolve", resolve)
    monkeypatch.setattr(store, "to_fetch", lambda *_: [])
    return asked


@pytest.fixture(scope="session")
def default_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: writing the vocabulary takes half a second."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cache(default_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIM_CACHE_PATH", str(default_cache))
    return default_cache


def launch(**settings: Any) -> Launch:
    return prepare(load(settings))


@pytest.fixture
def script(harmony_ids: Fixture) -> list[int]:
    return list(harmony_ids("<|channel|>final<|message|>" + "word " * 300 + "<|return|>"))


@pytest.fixture
def serve(script: list[int]) -> Iterator[Fixture]:
    started: list[Serving] = []

    def start(*flags: str, step_s: float = 0.0, options: Any = None, **given: Any) -> Serving:
        options = {"script": script, "step_s": step_s} if options is None else options
        started.append(Serving(options, *flags, **given))
        return started[-1]

    yield start
    for server in started:
        server.end()
