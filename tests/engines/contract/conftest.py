"""Every engine the contract holds for, in process and behind the engine process."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engines.base import Engine, EngineRequest, SamplingParams
from engines.factory import create
from engines.process.supervisor import EngineSupervisor
from engines.spec import EngineSpec

MAX_MODEL_LEN = 256
VOCAB_SIZE = 512
IS_GPU = Path("/dev/nvidiactl").exists()  # cheaper than asking torch, which most modes never load
ON_GPU = ["native-cuda", "native-cuda-process"] if IS_GPU else []
MODES = ["fake", "fake-process", "native", "native-process", *ON_GPU]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random gpt-oss in the published format."""
    import torch
    from transformers import GptOssConfig, GptOssForCausalLM

    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=32,
        max_position_embeddings=1024,
        initializer_range=0.5,  # wide enough that greedy answers vary
        eos_token_id=1,
        pad_token_id=0,
    )
    folder = tmp_path_factory.mktemp("checkpoint")
    GptOssForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 256 bytes; all other ids are control tokens."""
    path = tmp_path_factory.mktemp("vocabulary") / "bytes"
    path.write_bytes(b"".join(b64encode(bytes([i])) + b" %d\n" % i for i in range(256)))
    return path


@pytest.fixture(scope="session")
def spec_of(request: pytest.FixtureRequest) -> Callable[[str], EngineSpec]:
    def spec(mode: str) -> EngineSpec:
        common = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 8}
        if mode.startswith("fake"):
            options = {"script": list(range(11, 60)), "step_s": 0.001, "vocab_size": VOCAB_SIZE}
            return EngineSpec("fake", options | common)
        model_dir = str(request.getfixturevalue("checkpoint"))
        vocabulary = str(request.getfixturevalue("vocabulary"))
        if "cuda" in mode:
            options = {"dtype": "bfloat16", "overlap_steps": True}
            return EngineSpec("native", options, common, model_dir, vocabulary, num_devices=1)
        return EngineSpec("native", {"num_threads": 1}, common, model_dir, vocabulary)

    return spec


@asynccontextmanager
async def running(spec: EngineSpec, mode: str) -> AsyncIterator[Engine]:
    """Start an engine the way the mode says and leave nothing of it."""
    supervisor = EngineSupervisor(spec) if mode.endswith("-process") else None
    if supervisor is not None:
        await supervisor.start()
    engine: Engine = supervisor.client() if supervisor is not None else create(spec)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
        if supervisor is not None:
            await supervisor.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=MODES)
async def engine(
    request: pytest.FixtureRequest, spec_of: Callable[[str], EngineSpec]
) -> AsyncIterator[Engine]:
    """The engine that all tests of a module share."""
    async with running(spec_of(request.param), request.param) as engine:
        yield engine


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
        async with asyncio.timeout(10):
            while True:
                stats = await engine.stats()
                is_free = stats.num_free_kv_blocks == stats.num_kv_blocks
                if is_free and stats.num_running == stats.num_waiting == 0:
                    return
                await asyncio.sleep(0.005)

    return wait
