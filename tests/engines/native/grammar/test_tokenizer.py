"""The library's view of the vocabulary is made before an engine is ready."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.errors import EngineStartError
from engines.native.assemble import load_core
from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from engines.native.grammar import compiler, vocabulary
from engines.native.grammar.trial import Trials
from engines.native.loop.core import EngineCore

Fixture = Callable[..., Any]


class Making:
    """Stands in the way of load_tokenizer until it is let go on."""

    def __init__(self, load: Callable[..., Any]) -> None:
        self._load = load
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.begun.set()
        assert self.may_end.wait(60)
        return self._load(*arguments)


@pytest.fixture
def making(monkeypatch: pytest.MonkeyPatch) -> Iterator[Making]:
    making = Making(vocabulary.load_tokenizer)
    monkeypatch.setattr(vocabulary, "load_tokenizer", making)
    yield making
    making.may_end.set()


async def test_it_is_made_beside_the_load_and_before_the_engine_is_ready(
    model_dir: Path, vocabulary_path: Path, making: Making
) -> None:
    """Later it would stop every request for a second."""

    def slow(config: NativeConfig) -> EngineCore:
        assert making.begun.wait(60)
        return load_core(config)

    engine = NativeEngine(NativeConfig(model_dir, vocabulary_path=vocabulary_path), slow)
    starting = asyncio.create_task(engine.start())
    async with asyncio.timeout(60):
        await asyncio.to_thread(making.begun.wait)
        await asyncio.sleep(0)
        assert not starting.done()
        making.may_end.set()
        await starting
    await engine.stop()


async def test_a_grammars_process_is_started_in_an_idle_moment(
    make_engine: Fixture, make_request: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def start(trials: Trials) -> None:
        begun.set()

    monkeypatch.setattr(Trials, "start", start)
    monkeypatch.setattr(compiler, "_GRACE_S", 0.2)
    engine = await make_engine()
    stream = engine.generate(make_request(None, 1, 4000, logit_bias={}))
    await anext(stream)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(begun.wait(), 0.6)
    await stream.aclose()
    await asyncio.wait_for(begun.wait(), 60)


async def test_a_missing_file_is_told_at_the_start(make_engine: Fixture, tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match="cannot be read"):
        await make_engine(vocabulary_path=tmp_path / "none")


async def test_a_missing_library_is_told_at_the_start(
    make_engine: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineStartError, match="llguidance is not installed"):
        await make_engine()


async def test_what_cannot_be_made_is_told_at_the_start(
    make_engine: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise EngineStartError("llguidance cannot be imported: no glibc")

    monkeypatch.setattr(vocabulary, "load_tokenizer", fail)
    with pytest.raises(EngineStartError, match="no glibc"):
        await make_engine()
