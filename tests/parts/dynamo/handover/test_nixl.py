"""Blocks by NVIDIA's NIXL, where it is installed: `pip install nixl` (docs/scale.md)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from engines.errors import EngineStartError
from engines.factory import create
from engines.process.supervisor import EngineSupervisor
from parts.dynamo.handover.channel import HandoverError
from tests.parts.dynamo.handover.pairs import (
    BLOCK,
    ask,
    handover,
    prompt,
    running,
    spec_of,
)

IS_HERE = find_spec("nixl") is not None
needs_nixl = pytest.mark.skipif(not IS_HERE, reason="NIXL is not installed: pip install nixl")
CACHED = (400 - 1) // BLOCK * BLOCK
NUM_WINDOW = 2  # blocks that a window of 8 tokens sees


@pytest.fixture(scope="module", autouse=True)
def loopback_alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UCX_NET_DEVICES", "lo")
        patch.setenv("UCX_TLS", "tcp")
        yield


@pytest.mark.skipif(IS_HERE, reason="NIXL is installed")
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_without_it_the_start_ends_with_the_remedy(folder: Path, role: str) -> None:
    given = handover(role, "tcp://127.0.0.1:1", transport="nixl")  # type: ignore[arg-type]
    with pytest.raises(EngineStartError, match="pip install nixl"):
        create(spec_of(folder, given))


@needs_nixl
async def test_prompts_are_answered_as_by_one_engine(
    folder: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "parts.dynamo.handover.prefill_source.PIECE_BYTES", 1 << 15
    )  # several messages
    prompts = [prompt(number) for number in range(8)]
    async with running(folder) as alone:
        expected = [(await ask(alone, each)).token_ids for each in prompts]
    # All prompts fit into one step. So none is cut, and no window is sent but the last one.
    options = {"max_num_batched_tokens": 8 * 400}
    async with (
        running(folder, handover("prefill", endpoint, transport="nixl"), **options),
        running(folder, handover("decode", transport="nixl")) as taking,
    ):
        found = await asyncio.gather(*(ask(taking, p, prefill_at=endpoint) for p in prompts))
        assert [answer.token_ids for answer in found] == expected
        assert [answer.num_cached for answer in found] == [CACHED] * 8
        stats = await taking.stats()
        assert (stats.extras["handovers"], stats.extras["failed_handovers"]) == (8, 0)
        assert stats.extras["handover_blocks"] == 8 * (CACHED // BLOCK + NUM_WINDOW)


@needs_nixl
async def test_a_window_comes_behind_each_step(folder: Path, endpoint: str) -> None:
    chunk = 64
    async with running(folder) as alone:
        expected = (await ask(alone, prompt(0))).token_ids
    async with (
        running(
            folder,
            handover("prefill", endpoint, transport="nixl"),
            max_num_batched_tokens=chunk,
        ),
        running(folder, handover("decode", transport="nixl")) as taking,
    ):
        assert await ask(taking, prompt(0), prefill_at=endpoint) == (expected, CACHED)
        num_steps = -(-400 // chunk)
        expected_blocks = CACHED // BLOCK + num_steps * NUM_WINDOW
        assert (await taking.stats()).extras["handover_blocks"] == expected_blocks


@needs_nixl
@pytest.mark.parametrize("transports", [("nixl", "tcp"), ("tcp", "nixl")])
async def test_where_one_has_it_alone_blocks_go_by_tcp(
    folder: Path, endpoint: str, transports: tuple[str, str]
) -> None:
    giving, taking = (
        handover(role, where, transport=transport)  # type: ignore[arg-type]
        for role, where, transport in zip(
            ("prefill", "decode"), (endpoint, None), transports, strict=True
        )
    )
    async with running(folder, giving), running(folder, taking) as engine:
        assert (await ask(engine, prompt(0), prefill_at=endpoint)).num_cached == CACHED


@needs_nixl
async def test_a_killed_peer_costs_time_only_and_its_successor_is_used(
    folder: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parts.dynamo.handover.prefilled_elsewhere._AVOIDED_S", 0.0)
    spec = spec_of(folder, handover("prefill", endpoint, transport="nixl"))
    async with running(folder) as alone:
        expected = [(await ask(alone, prompt(number))).token_ids for number in range(3)]
    async with running(folder, handover("decode", transport="nixl")) as taking:
        for number in range(3):
            supervisor = EngineSupervisor(spec)
            await supervisor.start()
            try:
                found = await ask(taking, prompt(number), prefill_at=endpoint)
                assert found == (expected[number], CACHED)
                assert supervisor.pid is not None
                os.kill(supervisor.pid, signal.SIGKILL)
                await ask(taking, prompt(10 + number), prefill_at=endpoint)
            finally:
                await supervisor.stop(0.0)
        assert (await taking.stats()).extras["handovers"] >= 3


@needs_nixl
def test_a_buffer_of_a_failed_transfer_is_not_lent_again_soon() -> None:
    from parts.dynamo.handover.nixl import NixlAgent

    near, far = NixlAgent(1 << 16), NixlAgent(1 << 16)
    with near.borrowed() as ours, far.borrowed() as theirs:
        theirs[:] = 7
        near.read(far.described(), theirs.ctypes.data, ours, within_s=10.0)
        assert np.all(ours == 7)
    address = ours.ctypes.data

    def read_from_nobody() -> None:
        with near.borrowed() as ours:
            assert ours.ctypes.data == address
            near.read(b"no such peer", 0, ours, within_s=1.0)

    with pytest.raises(HandoverError, match="NIXL"):
        read_from_nobody()
    with near.borrowed() as ours:
        assert ours.ctypes.data != address
