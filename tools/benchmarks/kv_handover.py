"""What handing K/V over takes: two native engines, one of which computes prompts for the other.

    python -m tools.benchmarks.kv_handover [--model-dir DIR] [--gpus 2] [--tokens 1000 4000]
        [--runs 3] [--transport nixl] [--streams 32]

Without --model-dir it is nano, expanded for the run. --gpus 1: both engines share the first GPU;
2: each has its own. Each takes --memory of its GPU; --store is the folder of compiled kernels,
NIM_CACHE_PATH/engines.
Times to the first token at the decode engine, medians and minima: `computed` there; `handed over`
with the prompt computed by the other engine; `handed over, cached there` with the other's cache:
the transfer alone; `cached` where the prompt is in the decode engine's cache. Each request finds
both engines idle. On a CPU the KV cache is small, and prompts fill it before the first time counts:
the first write to new memory would be measured otherwise.

--streams: gaps between the tokens of so many streams beside prompts of the greatest length, one
after the other: streams at the decode engine and prompts computed by the other one, against both
engines with half of the streams and of the prompts each.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from engines.base import EngineRequest, SamplingParams
from engines.process.client import EngineClient
from engines.process.supervisor import EngineSupervisor
from engines.spec import EngineSpec, KvHandover
from profiles.checkpoints.compact import bundled_nano, expand
from service.settings.settings import engine_environment

_SECRET: Final = "of this measurement alone"
_VOCAB_SIZE: Final = 100_000
_IDLE_S: Final = 0.05  # before each request
_BLOCK_TOKENS: Final = 16  # on a CPU
_PROMPTS_HELD: Final = 4  # of the greatest length, by the small cache


class Pair:
    """A decode engine, and a prefill engine at an address."""

    def __init__(self, prefill: EngineClient, decode: EngineClient, endpoint: str) -> None:
        self.prefill, self.decode, self.endpoint = prefill, decode, endpoint

    async def first_token_s(
        self, engine: EngineClient, prompt: tuple[int, ...], prefill_at: str | None = None
    ) -> float:
        await asyncio.sleep(_IDLE_S)
        sampling = SamplingParams(1, temperature=0.0)
        request = EngineRequest("measured", prompt, sampling, prefill_at=prefill_at)
        begun_s = time.perf_counter()
        async for _ in engine.generate(request):
            pass
        return time.perf_counter() - begun_s

    async def fill(self, num_tokens: int) -> None:
        """Write to every block of both caches."""
        chance = random.Random(0)
        for _ in range(_PROMPTS_HELD + 1):
            prompt = tuple(chance.choices(range(_VOCAB_SIZE), k=num_tokens))
            await self.first_token_s(self.decode, prompt, self.endpoint)

    async def measure(self, num_tokens: int, num_runs: int) -> None:
        """Print the times of prompts of this length, and what was transferred."""
        chance = random.Random(num_tokens)
        times: dict[str, list[float]] = {}
        transferred, seconds = 0, 0.0
        for _ in range(num_runs):
            a, b, c = (tuple(chance.choices(range(_VOCAB_SIZE), k=num_tokens)) for _ in range(3))
            found = {
                "computed": await self.first_token_s(self.decode, a),
                "cached": await self.first_token_s(self.decode, a),
                "handed over": await self.first_token_s(self.decode, b, self.endpoint),
            }
            await self.first_token_s(self.prefill, c)
            before = await self.decode.stats()
            label = "handed over, cached there"
            found[label] = await self.first_token_s(self.decode, c, self.endpoint)
            after = await self.decode.stats()
            if after.num_failed_handovers:
                raise SystemExit("a handover failed: the log says why")
            transferred += after.handover_bytes - before.handover_bytes
            seconds += after.handover_s - before.handover_s
            for name, value in found.items():
                times.setdefault(name, []).append(value)
        print(f"{num_tokens} tokens, {transferred / num_runs / 2**20:.1f} MiB of K/V")
        for name, values in times.items():
            print(
                f"  {name:26} {median(values):8.3f} s to the first token, {min(values):.3f} at best"
            )
        print(f"  {transferred / seconds / 1e9:.2f} GB/s, the question and its answer included")

    async def measure_gaps(self, num_streams: int, num_tokens: int, num_prompts: int) -> None:
        """Print the gaps with the two roles, and with two engines that do both."""
        for name, engines, prefill_at in (
            ("prefill and decode", [self.decode], self.endpoint),
            ("two that do both", [self.decode, self.prefill], None),
        ):
            gaps: list[float] = []
            streams = [
                asyncio.create_task(self._stream(engines[i % len(engines)], i, gaps))
                for i in range(num_streams)
            ]
            await asyncio.sleep(1.0)  # all have begun
            gaps.clear()
            first_s = []
            for number in range(num_prompts):
                chance = random.Random(f"{name} {number}")
                prompt = tuple(chance.choices(range(_VOCAB_SIZE), k=num_tokens))
                engine = engines[number % len(engines)]
                first_s.append(await self.first_token_s(engine, prompt, prefill_at))
            for stream in streams:
                stream.cancel()
            await asyncio.wait(streams)
            gaps.sort()
            print(
                f"{name}: gaps of {num_streams} streams {median(gaps):.4f} s,"
                f" 99 % {gaps[int(0.99 * len(gaps))]:.4f}, longest {gaps[-1]:.4f};"
                f" first token of {num_tokens} tokens after {median(first_s):.3f} s"
            )

    async def _stream(self, engine: EngineClient, number: int, gaps: list[float]) -> None:
        while True:
            sampling = SamplingParams(1000, temperature=1.0, seed=number, min_tokens=1000)
            last_s = None
            async for _ in engine.generate(EngineRequest("stream", (number, 1, 2), sampling)):
                now_s = time.perf_counter()
                if last_s is not None:
                    gaps.append(now_s - last_s)
                last_s = now_s


async def run(arguments: argparse.Namespace, model_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
    limits = {"max_model_len": max(arguments.tokens) + 16, "max_num_seqs": 8 + arguments.streams}
    longest = max(max(arguments.tokens), 1000 * arguments.streams)
    options: dict[str, Any] = {"num_kv_blocks": _PROMPTS_HELD * longest // _BLOCK_TOKENS}
    if arguments.gpus:
        options = {"dtype": "bfloat16", "overlap_steps": True}
    async with AsyncExitStack() as stack:
        clients = []
        for number, handover in enumerate(
            (
                KvHandover("prefill", _SECRET, endpoint, transport=arguments.transport),
                KvHandover("decode", _SECRET, timeout_s=600.0, transport=arguments.transport),
            )
        ):
            spec = EngineSpec(
                "native", options, limits, str(model_dir), handover=handover,
                num_devices=min(arguments.gpus, 1),
                memory_fraction=arguments.memory if arguments.gpus else None,
                artefact_dir=str(arguments.store) if arguments.store else None,
            )  # fmt: skip
            gpu = str(number % max(arguments.gpus, 1))
            environment = engine_environment({"CUDA_VISIBLE_DEVICES": gpu})  # as the server's
            supervisor = EngineSupervisor(spec, environment=environment)
            await supervisor.start()
            stack.push_async_callback(supervisor.stop, 0.0)
            client = supervisor.client()
            await client.start()
            stack.push_async_callback(client.stop)
            clients.append(client)
        pair = Pair(clients[0], clients[1], endpoint)
        if not arguments.gpus:
            await pair.fill(max(arguments.tokens))
        for num_tokens in arguments.tokens:
            await pair.measure(num_tokens, arguments.runs)
        if arguments.streams:
            await pair.measure_gaps(arguments.streams, max(arguments.tokens), 2 * arguments.runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model-dir", type=Path)
    parser.add_argument("--gpus", type=int, choices=(0, 1, 2), default=0)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--memory", type=float, default=0.45)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1000, 4000])
    parser.add_argument("--transport", choices=("tcp", "nixl"), default="tcp")
    parser.add_argument("--streams", type=int, default=0)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model_dir = arguments.model_dir
        if model_dir is None:
            expand(bundled_nano(), model_dir := Path(scratch) / "nano")
        asyncio.run(run(arguments, model_dir))


if __name__ == "__main__":
    main()
