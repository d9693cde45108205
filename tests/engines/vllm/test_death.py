"""vLLM's model runs in processes of its own: what becomes of requests when one of them dies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from engines.base import Engine, EngineRequest, SamplingParams
from engines.errors import EngineDead
from tests.engines.contract.contenders import ASKED, running, write_checkpoint

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(ASKED != "vllm", reason="make test-vllm has vLLM to kill"),
]
RESTARTED_WITHIN_S = 900  # it loads its library twice, on a machine that may be busy


async def read(engine: Engine, begun: asyncio.Event) -> None:
    request = EngineRequest("r", (21, 22, 23), SamplingParams(240, temperature=0.0))
    async for _ in engine.generate(request):
        begun.set()


async def test_a_death_below_the_engine_process_is_its_own_and_it_is_started_again(
    tmp_path: Path,
) -> None:
    async with running("vllm-process", write_checkpoint(tmp_path)) as started:
        engine, supervisor = started.engine, started.supervisor
        assert supervisor is not None
        assert supervisor.pid is not None
        below = psutil.Process(supervisor.pid).children(recursive=True)
        [core] = [child for child in below if "EngineCore" in " ".join(child.cmdline())]
        cut = asyncio.create_task(read(engine, begun := asyncio.Event()))
        await begun.wait()
        core.kill()
        await asyncio.wait([cut])
        assert isinstance(cut.exception(), EngineDead)
        async with asyncio.timeout(RESTARTED_WITHIN_S):
            while not (supervisor.num_restarts and supervisor.pid):
                await asyncio.sleep(0.1)
        assert not any(child.is_running() for child in below)
        await read(engine, begun)
