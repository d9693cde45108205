"""Blocks in host memory change no token of a real model."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.engines.native.scheduling.test_real_model import (
    NUM_TOKENS,
    PROMPTS,
    MakeRequest,
    alone,
    model_dir,
    running,
    tokens_of,
)

__all__ = ["alone", "model_dir"]


async def test_blocks_from_host_memory_change_nothing(
    model_dir: Path, alone: list[list[int]], make_request: MakeRequest
) -> None:
    """A pool that holds one conversation of several, and their blocks on the host."""
    few = {"num_kv_blocks": 60, "max_num_batched_tokens": 24, "max_model_len": 110}
    async with running(model_dir, **few, host_kv_bytes=4 << 20) as engine:
        for _ in range(2):
            assert [await tokens_of(engine, make_request(p, NUM_TOKENS)) for p in PROMPTS] == alone
        together = [tokens_of(engine, make_request(prompt, NUM_TOKENS)) for prompt in PROMPTS]
        assert await asyncio.gather(*together) == alone
        stats = await engine.stats()
    assert stats.extras["host_cache_hits"] > 50
    assert stats.extras["host_kv_saved_bytes"] > 0


async def test_answers_with_keys_and_values_in_8_bits_do_not_depend_on_the_load(
    model_dir: Path, alone: list[list[int]], make_request: MakeRequest
) -> None:
    """They are others than with all bits; chunks, neighbours and copies change nothing."""
    async with running(model_dir, kv_dtype="fp8", enable_prefix_caching=False) as engine:
        expected = [await tokens_of(engine, make_request(p, NUM_TOKENS)) for p in PROMPTS]
    few = {"num_kv_blocks": 60, "max_num_batched_tokens": 24, "max_model_len": 110}
    async with running(model_dir, kv_dtype="fp8", host_kv_bytes=1 << 20, **few) as engine:
        for _ in range(2):
            found = await asyncio.gather(
                *(tokens_of(engine, make_request(p, NUM_TOKENS)) for p in PROMPTS)
            )
            assert found == expected
        assert (await engine.stats()).extras["host_cache_hits"] > 0
    assert expected != alone
