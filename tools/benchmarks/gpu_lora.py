"""Steps with LoRA adapters on this machine's GPU, beside steps without.

    python -m tools.benchmarks.gpu_lora [--model 20b|120b] [--ranks 16 64] [--json FILE]

Random weights of the true shape and random adapters of q, k, v and o in every layer, so small that
routing stays: else tokens meet other experts, and that is what takes the time. `plain` is an
engine without room for adapters; the others have room for eight. Sequences ask for the adapters in
turn. `ms` is the median step of so many streams, `first_ms` the time in which all their prompts of
128 tokens are computed; each figure is the least of several rounds, which go in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from engines.base import Adapter, EngineRequest, SamplingParams
from engines.native.assemble import assemble_core
from engines.native.backends.base import Addend, Capacity
from engines.native.backends.cuda.artefact import compiled_kernels
from engines.native.backends.cuda.artefact.ahead import compile_in_processes
from engines.native.backends.cuda.backend import CudaBackend
from engines.native.backends.cuda.card import Card
from engines.native.backends.cuda.memory.adapter_room import AdapterRoom
from engines.native.backends.cuda.offline.published import gpt_oss
from engines.native.backends.cuda.passes.stages import ModelPart
from engines.native.backends.cuda.weights.model import ModelWeights
from engines.native.config import ModelConfig, NativeConfig
from engines.native.kv_pool import layers_per_group
from engines.native.loop.core import EngineCore
from tools.benchmarks.published import config_json
from tools.benchmarks.random_model import random_weights

STREAMS: Final = (8, 32, 128)
ADAPTERS: Final = (0, 1, 4, 8)
_PROMPT: Final = 128
_SETTLE: Final = 8  # steps
_TIMED: Final = 64
_ROUNDS: Final = 2
_BLOCK: Final = 64
_CHUNK: Final = 2048
_DEVICE: Final = torch.device("cuda")


def backend_of(
    config: ModelConfig, weights: ModelWeights, streams: int, room: AdapterRoom | None
) -> CudaBackend:
    blocks = streams * 12 + 3 * _CHUNK // _BLOCK
    size = (layers_per_group(config), blocks, _BLOCK * 2 * config.kv_size)
    cache = torch.zeros(size, dtype=torch.bfloat16, device=_DEVICE)
    capacity = Capacity(blocks, _BLOCK, 4096)
    parts = [ModelPart(config, weights, cache)]
    return CudaBackend(config, parts, capacity, streams, _CHUNK, adapters=room)


def changes_of(config: ModelConfig, rank: int, seed: int) -> dict[str, Addend]:
    generator = np.random.default_rng(seed)
    sides = {
        "q_proj": (config.q_size, config.hidden_size),
        "k_proj": (config.kv_size, config.hidden_size),
        "v_proj": (config.kv_size, config.hidden_size),
        "o_proj": (config.hidden_size, config.q_size),
    }

    def values(*shape: int) -> Any:
        return generator.standard_normal(shape, dtype=np.float32) * np.float32(0.002)

    return {
        f"model.layers.{layer}.self_attn.{name}.weight": Addend(
            values(num_out, rank), values(rank, num_in)
        )
        for layer in range(config.num_hidden_layers)
        for name, (num_out, num_in) in sides.items()
    }


def put(backend: CudaBackend, config: ModelConfig, rank: int) -> dict[str, float]:
    """Adapters `0` to `7`; how long one takes."""
    table = backend.capacity.adapters
    assert table is not None
    placed_s = []
    for name in range(max(ADAPTERS)):
        changes, began_s = changes_of(config, rank, name), time.perf_counter()
        prepared = table.prepared(changes)
        torch.cuda.synchronize()
        placing_s = time.perf_counter()
        table.put(str(name), prepared)
        called_s = time.perf_counter()
        torch.cuda.synchronize()
        placed_s.append(
            (placing_s - began_s, called_s - placing_s, time.perf_counter() - placing_s)
        )
    prepare, call, whole = (1e3 * min(each) for each in zip(*placed_s, strict=True))
    return {"prepare_ms": round(prepare, 1), "call_ms": round(call, 2), "place_ms": round(whole, 2)}


def core_of(config: ModelConfig, backend: CudaBackend, streams: int) -> EngineCore:
    native = NativeConfig(
        Path(), dtype="bfloat16", max_num_seqs=streams, max_num_batched_tokens=_CHUNK,
        overlap_steps=True, enable_prefix_caching=False,
    )  # fmt: skip
    return assemble_core(native, backend, config.sliding_window, config.vocab_size)


def timed(core: EngineCore, vocab_size: int, streams: int, adapters: int) -> tuple[float, float]:
    """Milliseconds until all prompts are computed, and of a step."""
    generator = torch.Generator().manual_seed(streams)
    answer = _SETTLE + _TIMED + 24
    for number in range(streams):
        ids = torch.randint(0, vocab_size - 1000, (_PROMPT,), generator=generator).tolist()
        name = str(number % adapters) if adapters else None
        adapter = None if name is None else Adapter(name, "", name)
        params = SamplingParams(answer, temperature=1.0, seed=number)
        core.scheduler.add(EngineRequest(str(number), tuple(ids), params, adapter=adapter))
    began_s = time.perf_counter()
    while core.stats().generated_tokens < streams:
        core.advance()
    first_ms = 1e3 * (time.perf_counter() - began_s)
    for _ in range(_SETTLE):
        core.advance()
    times_ms = []
    for _ in range(_TIMED):
        began_s = time.perf_counter()
        core.advance()
        times_ms.append(1e3 * (time.perf_counter() - began_s))
    while core.has_work:
        core.advance()
    return first_ms, statistics.median(times_ms)


def measured(
    config: ModelConfig, backends: dict[str, CudaBackend], streams: int
) -> Iterator[dict[str, Any]]:
    """Each number of adapters, and the engine without room for any."""
    cases = [("plain", 0)] + [
        (name, num) for name in backends if name != "plain" for num in ADAPTERS
    ]
    best: dict[tuple[str, int], tuple[float, float]] = {}
    for _ in range(_ROUNDS):
        for case in cases:
            core = core_of(config, backends[case[0]], streams)
            found = timed(core, config.vocab_size, streams, case[1])
            first, step = zip(found, best.get(case, found), strict=True)
            best[case] = min(first), min(step)
    for case in cases:
        first_ms, ms = best[case]
        yield {
            "streams": streams,
            "engine": case[0],
            "adapters": case[1],
            "ms": round(ms, 4),
            "of_plain": round(ms / best["plain", 0][1], 3),
            "first_ms": round(first_ms, 2),
            "first_of_plain": round(first_ms / best["plain", 0][0], 3),
        }


def compiled_ahead(config: ModelConfig, folder: Path, ranks: list[int]) -> float:
    """Compile on all cores what the engines will launch; the seconds."""
    began_s = time.perf_counter()
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(config_json(config)))
    for rank in ranks:
        sizes = {
            "max_rows": max(STREAMS), "max_tokens": _CHUNK, "max_drafts": 0, "block_size": _BLOCK,
            "max_adapters": max(ADAPTERS), "max_adapter_rank": rank,
        }  # fmt: skip
        wanted = {"card": asdict(Card.of(_DEVICE)), "model_dir": str(model), "is_packed": True,
                  "kv_dtype": None, "sizes": sizes}  # fmt: skip
        compile_in_processes(wanted)(folder / "kernels", lambda _: None)
    return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["20b", "120b"], default="20b")
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS)
    parser.add_argument("--kernels", type=Path, default=Path("/tmp/harmonium-gpu-lora"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    config = gpt_oss(arguments.model)
    line: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "model": arguments.model,
        "compile_s": round(compiled_ahead(config, arguments.kernels, arguments.ranks), 1),
        "engines": {},
        "steps": [],
    }
    print("compiled in", line["compile_s"], "s", flush=True)
    with torch.inference_mode(), compiled_kernels.cache_at(arguments.kernels / "kernels"):
        weights = random_weights(config, 4096, _DEVICE)
        backends = {}
        for rank in (0, *arguments.ranks):
            name = f"rank {rank}" if rank else "plain"
            began_s, before = time.perf_counter(), torch.cuda.mem_get_info()[0]
            room = AdapterRoom.fitting(max(ADAPTERS), rank) if rank else None
            backends[name] = backend_of(config, weights, max(arguments.streams), room)
            found: dict[str, Any] = {
                "capture_s": round(time.perf_counter() - began_s, 1),
                "memory_mb": round((before - torch.cuda.mem_get_info()[0]) / 1e6),
            }
            if rank:
                found |= put(backends[name], config, rank)
            line["engines"][name] = found
            print(name, found, flush=True)
        for streams in arguments.streams:
            for each in measured(config, backends, streams):
                line["steps"].append(each)
                print(each, flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(line, indent=1) + "\n")
    print(json.dumps(line))


if __name__ == "__main__":
    main()
