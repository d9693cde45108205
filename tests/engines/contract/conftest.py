"""Every engine the contract holds for (contenders.py), in process and behind the engine process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from engines.base import Engine, EngineRequest, SamplingParams
from tests.engines.contract.contenders import (
    Checkpoint,
    Contender,
    Started,
    contender_of,
    modes,
    running,
    write_checkpoint,
)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


StartOnce = Callable[[str], Awaitable[Started]]


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def start_once(checkpoint: Checkpoint) -> AsyncIterator[StartOnce]:
    """await start_once(mode): the engine of that mode, for all who leave it as they found it."""
    known: dict[str, Started] = {}
    async with AsyncExitStack() as stack:

        async def start(mode: str) -> Started:
            if mode not in known:
                known[mode] = await stack.enter_async_context(running(mode, checkpoint))
            return known[mode]

        yield start


@pytest_asyncio.fixture(scope="package", loop_scope="package", params=modes())
async def started(request: pytest.FixtureRequest, start_once: StartOnce) -> Started:
    """An engine with what keeps it, shared by all tests that leave it as they found it."""
    return await start_once(request.param)


# How a process dies, drains and comes back is its supervisor's: the scripted engine's shows it.
LONGER = {"native-process": pytest.mark.slow}


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="package",
    params=[pytest.param(mode, marks=LONGER.get(mode, ())) for mode in modes()],
)
async def mortal(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> AsyncIterator[Started]:
    """An engine that the tests of a module may kill and the last one stops."""
    async with running(request.param, checkpoint) as started:
        yield started


@pytest.fixture
def engine(started: Started) -> Engine:
    return started.engine


@pytest_asyncio.fixture(
    scope="package", loop_scope="package", params=modes(models_only=True, variants=True)
)
async def model(request: pytest.FixtureRequest, start_once: StartOnce) -> Engine:
    """An engine that runs a model rather than a script."""
    return (await start_once(request.param)).engine


@pytest.fixture
def contender(request: pytest.FixtureRequest) -> Contender:
    """What of the engine that a test has is known beforehand."""
    params = request.node.callspec.params
    return contender_of(params.get("model") or params["started"])


@pytest.fixture
def is_rounded(contender: Contender) -> bool:
    """Whether a cut answer may go on otherwise than it did, where two tokens are near."""
    return contender.is_rounded


@pytest.fixture
def alike_in_any_batch(contender: Contender) -> None:
    """Pass the test over where an answer may depend on those beside it."""
    if contender.is_alone_apart:
        pytest.skip("a row gets other bits in another batch there")


@pytest.fixture
def needs() -> Callable[..., None]:
    """needs(engine, *capabilities): pass the test over where the engine says it lacks one."""

    def check(engine: Engine, *names: str) -> None:
        for name in names:
            if name in engine.info.capabilities.lacks:
                pytest.skip(f"{engine.info.engine} says that it lacks {name}")

    return check


@pytest.fixture
def make_request() -> Callable[..., EngineRequest]:
    """Make a greedy request unless told otherwise."""

    def make(
        prompt: tuple[int, ...] = (21, 22, 23),
        max_tokens: int = 8,
        stop: tuple[int, ...] = (),
        cache_salt: str | None = None,
        **sampling: Any,
    ) -> EngineRequest:
        params = SamplingParams(max_tokens, **{"temperature": 0.0, **sampling})
        return EngineRequest("request", prompt, params, stop, cache_salt=cache_salt)

    return make


@pytest.fixture
def until_idle() -> Callable[[Engine], Any]:
    """Wait until nothing runs and every KV block is free again."""

    async def wait(engine: Engine) -> None:
        async with asyncio.timeout(60):
            while True:
                stats = await engine.stats()
                is_free = stats.num_free_kv_blocks == stats.num_kv_blocks
                if is_free and stats.num_running == stats.num_waiting == 0:
                    return
                await asyncio.sleep(0.005)

    return wait
