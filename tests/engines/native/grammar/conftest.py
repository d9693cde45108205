"""A random checkpoint with the whole vocabulary: what it writes is noise."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from engines.base import EngineRequest, SamplingParams, TokenEvent
from engines.grammar.tree import Grammar
from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from service.harmony.vocabulary import CALL, END, RETURN, encode_text
from tools.benchmarks.checkpoint import write_random

MakeEngine = Callable[..., Awaitable[NativeEngine]]

# A random model would hardly ever end a text, a string or a list by itself.
ENDS = {END: 14.0, RETURN: 16.0, CALL: 16.0} | {
    encode_text(text)[0]: 11.0 for text in ('"', "}", "]", '"}', '"]', ":")
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    return write_random(folder, hidden=16, num_layers=2, num_experts=4)


@asynccontextmanager
async def engines(model_dir: Path, vocabulary_path: Path) -> AsyncIterator[MakeEngine]:
    """Start engines; they stop at the end."""
    started: list[NativeEngine] = []

    async def start(**options: Any) -> NativeEngine:
        options = {"num_kv_blocks": 400, "num_threads": 1, **options}
        options.setdefault("vocabulary_path", vocabulary_path)
        started.append(NativeEngine(NativeConfig(model_dir, **options)))
        await started[-1].start()
        return started[-1]

    try:
        yield start
    finally:
        for engine in started:
            await engine.stop()


@pytest.fixture
async def make_engine(model_dir: Path, vocabulary_path: Path) -> AsyncIterator[MakeEngine]:
    """await make_engine(**options)"""
    async with engines(model_dir, vocabulary_path) as start:
        yield start


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model_dir: Path, vocabulary_path: Path) -> AsyncIterator[NativeEngine]:
    """One for all tests that leave it as it was; they run in the loop of their module."""
    async with engines(model_dir, vocabulary_path) as start:
        yield await start()


@pytest.fixture
def make_request() -> Callable[..., EngineRequest]:
    """make_request(grammar, seed, max_tokens, **sampling); each seed has a prompt of its own."""

    def make(
        grammar: Grammar | None, seed: int = 0, max_tokens: int = 300, **sampling: Any
    ) -> EngineRequest:
        values = {"temperature": 1.0, "logit_bias": ENDS, "seed": seed, **sampling}
        return EngineRequest(
            request_id=f"r{seed}",
            prompt_token_ids=(200006, 173781, 1000 + seed),
            sampling=SamplingParams(max_tokens, **values),
            stop_token_ids=(RETURN, CALL),
            grammar=grammar,
        )

    return make


@pytest.fixture
def collect() -> Callable[..., Any]:
    """await collect(engine, request) gives the events."""

    async def run(engine: NativeEngine, request: EngineRequest) -> list[TokenEvent]:
        return [event async for event in engine.generate(request)]

    return run
