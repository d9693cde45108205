"""The library's view of the vocabulary is made when nobody's steps wait for it, and only once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.base import FinishReason
from engines.errors import EngineStartError
from engines.grammar.tree import Literal
from engines.native import grammar_vocabulary, runner
from engines.native.config import NativeConfig
from engines.native.core import EngineCore, load_core
from engines.native.engine import NativeEngine

Fixture = Callable[..., Any]


class Making:
    """Stands in the way of load_tokenizer until it is let go on."""

    def __init__(self, load: Callable[..., Any]) -> None:
        self._load = load
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.num = 0

    def __call__(self, *arguments: Any) -> Any:
        self.num += 1
        self.begun.set()
        assert self.may_end.wait(60)
        return self._load(*arguments)


@pytest.fixture
def making(monkeypatch: pytest.MonkeyPatch) -> Iterator[Making]:
    making = Making(grammar_vocabulary.load_tokenizer)
    monkeypatch.setattr(grammar_vocabulary, "load_tokenizer", making)
    yield making
    making.may_end.set()


async def test_the_first_grammar_waits_for_it_and_others_do_not(
    make_engine: Fixture, make_request: Fixture, collect: Fixture, making: Making
) -> None:
    engine = await make_engine()
    assert not making.begun.is_set()
    guided = [
        asyncio.create_task(collect(engine, make_request(Literal(text), seed)))
        for seed, text in enumerate(("a", "b"))
    ]
    async with asyncio.timeout(60):
        await asyncio.to_thread(making.begun.wait)
        free = await collect(engine, make_request(None, 2, 4))
    assert free[-1].finish_reason is not None
    assert not any(task.done() for task in guided)
    making.may_end.set()
    for events in await asyncio.gather(*guided):
        assert events[-1].finish_reason is FinishReason.STOP
    assert making.num == 1


async def test_it_is_made_in_an_idle_moment_before_anyone_asks(
    make_engine: Fixture, making: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_vocabulary, "_GRACE_S", 0.0)
    await make_engine()
    async with asyncio.timeout(60):
        await asyncio.to_thread(making.begun.wait)


async def test_it_is_made_beside_a_load_that_takes_long(
    model_dir: Path, vocabulary_path: Path, making: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would stop the streams of the first second."""
    monkeypatch.setattr(runner, "LARGE_BYTES", 0)

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


async def test_it_is_not_made_while_requests_run(
    make_engine: Fixture,
    make_request: Fixture,
    making: Making,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grammar_vocabulary, "_GRACE_S", 0.2)
    engine = await make_engine()
    stream = engine.generate(make_request(None, 1, 4000, logit_bias={}))
    await anext(stream)
    assert not await asyncio.to_thread(making.begun.wait, 0.6)
    await stream.aclose()
    async with asyncio.timeout(60):
        await asyncio.to_thread(making.begun.wait)


async def test_a_missing_file_is_told_at_the_start(make_engine: Fixture, tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match="cannot be read"):
        await make_engine(vocabulary_path=tmp_path / "none")


async def test_a_missing_library_is_told_at_the_start(
    make_engine: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineStartError, match="llguidance is not installed"):
        await make_engine()


async def test_what_cannot_be_made_is_logged_and_fails_its_requests_only(
    make_engine: Fixture,
    make_request: Fixture,
    collect: Fixture,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any) -> None:
        raise EngineStartError("llguidance cannot be imported: no glibc")

    monkeypatch.setattr(grammar_vocabulary, "load_tokenizer", fail)
    engine = await make_engine()
    with pytest.raises(EngineStartError, match="no glibc"):
        await collect(engine, make_request(Literal("a")))
    assert "Guided answers will fail" in caplog.text
    assert (await collect(engine, make_request(None, 1, 4)))[-1].finish_reason is not None
