"""llama.cpp on a small GGUF file gives what our own engine gives on its checkpoint."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engines.base import Engine, EngineRequest, SamplingParams
from engines.errors import EngineStartError
from engines.factory import cpu_only_engines, create
from engines.prompt_logprobs import PromptToken, packed_in, unpacked
from engines.spec import EngineSpec
from tests.engines.contract.contenders import Checkpoint, write_checkpoint

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (make test-llama)")

MAX_MODEL_LEN = 512
OPTIONS = {"num_threads": 1, "block_size": 16}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """As llama.cpp computes it: the ends of YaRN's ramp are rounded (`truncate`)."""
    from tests.engines.llama_cpp.gguf_file import write_gguf

    checkpoint = write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    path = checkpoint.folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"]["truncate"] = True
    path.write_text(json.dumps(config))
    write_gguf(checkpoint.folder, checkpoint.folder / "model.gguf")
    return checkpoint


def spec(checkpoint: Checkpoint, engine: str = "llama_cpp", **options: Any) -> EngineSpec:
    options = {**OPTIONS, **options} if engine == "llama_cpp" else {"num_threads": 1}
    limits = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 4}
    paths = (str(checkpoint.folder), str(checkpoint.vocabulary))
    return EngineSpec(engine, options, limits, *paths)


@asynccontextmanager
async def running(spec: EngineSpec) -> AsyncIterator[Engine]:
    engine = create(spec)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def answer(engine: Engine, prompt: list[int], max_tokens: int = 24) -> tuple[list[int], int]:
    """The greedy answer, and how many tokens of the prompt were cached."""
    params = SamplingParams(max_tokens, temperature=0.0)
    events = [e async for e in engine.generate(EngineRequest("r", tuple(prompt), params))]
    return [token for event in events for token in event.token_ids], events[0].num_cached_tokens


def prompts(num: int, length: int) -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(2, 500) for _ in range(length)] for _ in range(num)]


async def test_greedy_tokens_are_those_of_our_own_engine(checkpoint: Checkpoint) -> None:
    asked = [prompt for length in (1, 5, 40, 90) for prompt in prompts(8, length)]
    answers = []
    for engine_name in ("native", "llama_cpp"):
        async with running(spec(checkpoint, engine_name)) as engine:
            answers.append(await asyncio.gather(*(answer(engine, p, 4) for p in asked)))
    ours, theirs = ([tokens for tokens, _ in side] for side in answers)
    # Its K/V have 16 bits and ours 32, so that a near tie may fall to another token.
    assert num_same(ours, theirs) >= 0.9 * len(asked)


def num_same(one: list[list[int]], other: list[list[int]]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=True))


async def scores(engine: Engine, prompt: list[int]) -> list[PromptToken]:
    """The log-probabilities of the prompt's tokens but the first, each with the two likeliest."""
    params = SamplingParams(2, temperature=0.0, prompt_logprobs=2)
    events = [e async for e in engine.generate(EngineRequest("r", tuple(prompt), params))]
    return [*unpacked(packed_in(events[0]) or (), prompt)]


async def test_log_probabilities_of_prompts_are_those_of_our_own_engine(
    checkpoint: Checkpoint,
) -> None:
    asked = [prompt for length in (2, 65, 300) for prompt in prompts(2, length)]  # up to 5 pieces
    found = []
    for engine_name in ("native", "llama_cpp"):
        async with running(spec(checkpoint, engine_name)) as engine:
            beside = asyncio.create_task(answer(engine, asked[0], 50))
            found.append(await asyncio.gather(*(scores(engine, p) for p in asked)))
            await beside
    gaps = []
    for ours, theirs in zip(*found, strict=True):
        assert [token.token_id for token in ours] == [token.token_id for token in theirs]
        gaps += [abs(one.logprob - two.logprob) for one, two in zip(ours, theirs, strict=True)]
        gaps += [abs(one.top[0][1] - two.top[0][1]) for one, two in zip(ours, theirs, strict=True)]
    # Its K/V have 16 bits and ours 32; where an expert is chosen the other way, a row moves.
    assert sum(gap < 0.05 for gap in gaps) > 0.9 * len(gaps)
    assert sum(gaps) / len(gaps) < 0.03


async def test_a_cached_prefix_gives_the_same_answer(checkpoint: Checkpoint) -> None:
    """The window's layers keep what no sequence sees any more, and whole blocks go for others."""
    [shared] = prompts(1, 200)
    others = prompts(40, 60)
    async with running(spec(checkpoint, enable_prefix_caching=False)) as engine:
        expected = [(await answer(engine, shared[:length]))[0] for length in (200, 130, 70)]
        assert (await answer(engine, shared))[1] == 0
    async with running(spec(checkpoint, num_kv_blocks=90)) as engine:
        await answer(engine, shared, 200)
        found = 0
        for i, other in enumerate(others):
            await asyncio.gather(answer(engine, other), answer(engine, [*shared[: 5 * i], *other]))
            for length, tokens in zip((200, 130, 70), expected, strict=True):
                again, num_cached = await answer(engine, shared[:length])
                assert again == tokens, (i, length)
                found += num_cached
    assert found > len(others) * 300  # of 400: most of the time all whole blocks are found


async def test_a_full_pool_costs_no_answer(checkpoint: Checkpoint) -> None:
    asked = prompts(12, 40)
    async with running(spec(checkpoint)) as engine:
        expected = await asyncio.gather(*(answer(engine, p, 100) for p in asked))
    async with running(spec(checkpoint, num_kv_blocks=32)) as engine:
        answers = await asyncio.gather(*(answer(engine, p, 100) for p in asked))
        stats = await engine.stats()
    assert stats.num_free_kv_blocks == stats.num_kv_blocks == 32
    assert stats.num_preemptions > 0
    tokens, before = ([tokens for tokens, _ in side] for side in (answers, expected))
    assert [len(each) for each in tokens] == [100] * 12
    assert num_same(tokens, before) >= 9  # in a batch of another size sums are rounded otherwise


@pytest.mark.parametrize("kv_dtype", ["fp16", "bf16", "q8_0"])
async def test_mxfp4_experts_and_every_kv_dtype_run(
    checkpoint: Checkpoint, tmp_path: Path, kv_dtype: str
) -> None:
    from tests.engines.llama_cpp.gguf_file import write_gguf

    path = write_gguf(checkpoint.folder, tmp_path / "packed.gguf", mxfp4=True)
    limits = {"max_model_len": 128}
    asked = EngineSpec(
        "llama_cpp", OPTIONS, limits, str(path), precision="mxfp4", kv_dtype=kv_dtype
    )
    async with running(asked) as engine:
        tokens, _ = await answer(engine, [5, 6, 7], 100)
    assert len(tokens) == 100


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"precision": "bf16"}, "precision is 'bf16'; .*model.gguf has 'fp32'"),
        pytest.param(
            {"num_devices": 1},
            "built for the CPU",
            marks=pytest.mark.skipif(
                "llama_cpp" not in cpu_only_engines(), reason="this llama.cpp is built for a GPU"
            ),
        ),
        ({"limits": {"max_model_len": 2000}}, "above the model's context length of 1024"),
        ({"options": {"num_kv_blocks": 2, "block_size": 16}}, "is 2 of 16 tokens, .* needs 512"),
        ({"options": {"block_size": 32}}, "less than the model's sliding window of 32"),
        (
            {"model_dir": "/nowhere.gguf"},
            "/nowhere.gguf is neither a GGUF file nor a folder with one",
        ),
    ],
)
async def test_what_cannot_start_says_why(
    checkpoint: Checkpoint, change: dict[str, Any], reason: str
) -> None:
    fields: dict[str, Any] = {
        "model_dir": str(checkpoint.folder),
        "options": OPTIONS,
        "limits": {"max_model_len": 512},
        **change,
    }
    with pytest.raises(EngineStartError, match=reason):
        await create(EngineSpec("llama_cpp", **fields)).start()
