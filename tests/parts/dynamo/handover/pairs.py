"""Engines of one small checkpoint that hand K/V over to each other."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from engines.base import EngineRequest, SamplingParams, TokenLogprob
from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from engines.native.loop.core import EngineCore
from engines.spec import EngineSpec
from parts.dynamo.engine import ENGINE
from parts.dynamo.handover.prefill_source import PrefillSource
from parts.dynamo.handover.spec import PART, KvHandover, prefilled_at
from tests.engines.native.small_model import small_config, write_small

SECRET: Final = "known to both of them"
VOCAB_SIZE: Final = 300
BLOCK: Final = 4
_OPTIONS: Final = {"block_size": BLOCK, "num_kv_blocks": 2000, "max_num_seqs": 8, "num_threads": 1}


class ByHand:
    """The part of engines.native.runner.CoreRunner that gives K/V, for a core without a thread: a
    test makes its steps."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    def call(self, work: Callable[[EngineCore], Any]) -> Future[Any]:
        result: Future[Any] = Future()
        result.set_result(work(self._core))
        return result


def source_of(core: EngineCore) -> PrefillSource:
    """What a core that a test steps gives: it is given prompts to compute by the test too."""

    def generate(request: EngineRequest) -> Any:
        raise AssertionError(f"{request.request_id} is for the test to compute")

    return PrefillSource(ByHand(core), generate, core, {})  # type: ignore[arg-type]


class Answer(NamedTuple):
    """What came of a request."""

    token_ids: list[int]
    num_cached: int  # tokens of its prompt


class ExactAnswer(NamedTuple):
    """An answer with its log-probabilities: they show also small differences of the K/V."""

    logprobs: list[TokenLogprob]
    num_cached: int

    @property
    def token_ids(self) -> list[int]:
        return [each.token_id for each in self.logprobs]


def write_checkpoint(folder: Path) -> Path:
    return write_small(folder, small_config(VOCAB_SIZE) | {"max_position_embeddings": 1024})


def prompt(number: int, num_tokens: int = 400) -> tuple[int, ...]:
    return tuple((17 * i * i + 5 + number * (i + 3)) % VOCAB_SIZE for i in range(num_tokens))


def free_endpoint() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"tcp://127.0.0.1:{taken.getsockname()[1]}"


def handover(
    role: Literal["prefill", "decode"],
    endpoint: str | None = None,
    secret: str = SECRET,
    timeout_s: float = 30.0,
    transport: Literal["tcp", "nixl"] = "tcp",
) -> KvHandover:
    return KvHandover(role, secret, endpoint, timeout_s, transport)


def spec_of(folder: Path, given: KvHandover | None) -> EngineSpec:
    limits = {"max_num_seqs": 8, "max_model_len": 1024}
    options = {name: value for name, value in _OPTIONS.items() if name not in limits}
    parts = {} if given is None else {PART: asdict(given)}
    return EngineSpec("native", options, limits, str(folder), parts=parts)


@asynccontextmanager
async def running(
    folder: Path, given: KvHandover | None = None, **options: Any
) -> AsyncIterator[NativeEngine]:
    own = [] if given is None else [ENGINE.for_spec(asdict(given))]
    engine = NativeEngine(NativeConfig(folder, **{**_OPTIONS, **options}), options=own)
    await engine.start()
    try:
        yield engine
        await engine.check_health()
    finally:
        await engine.stop()


async def ask(engine: Any, token_ids: tuple[int, ...], **wishes: Any) -> Answer:
    sampling = SamplingParams(wishes.pop("max_tokens", 12), temperature=0.0)
    wishes["extras"] = prefilled_at(wishes.pop("prefill_at", None))
    request = EngineRequest("asked", token_ids, sampling, **wishes)
    events = [event async for event in engine.generate(request)]
    return Answer([t for event in events for t in event.token_ids], events[0].num_cached_tokens)


async def ask_exactly(
    engine: Any, token_ids: tuple[int, ...], prefill_at: str | None = None
) -> ExactAnswer:
    sampling = SamplingParams(12, temperature=0.0, logprobs=5)
    request = EngineRequest("asked", token_ids, sampling, extras=prefilled_at(prefill_at))
    events = [event async for event in engine.generate(request)]
    return ExactAnswer([t for e in events for t in e.logprobs or ()], events[0].num_cached_tokens)
