"""What tensor parallelism over two GPUs could bring at best, measured on what is there.

    python -m benchmarks.gpu_split [--model 20b|120b] [--part step|reduce] [--json FILE]

`step`, on one GPU: the decode step of the whole model, and of a model with half the heads, half of
each expert and half the vocabulary, which is what each of two GPUs would compute. `reduce`, on two:
an all-reduce of the residual stream inside a CUDA graph, two for each layer. Half a step and its
all-reduces is a bound: what they hide of one another is not in it, nor the gathering of logits.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from benchmarks.gpu import Bench, read_bandwidth
from engines.native.backends.cuda.random_model import gpt_oss, random_weights
from engines.native.backends.cuda.shape import Shape
from engines.native.config import ModelConfig

ROWS: Final = (1, 8, 32)
_REPLAYS: Final = 30
# NVLink multicast can put GPUs that others share out of service: never asked for here.
_NO_MULTICAST: Final = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_split", description=__doc__)
    parser.add_argument("--model", choices=["20b", "120b"], default="120b")
    parser.add_argument("--part", choices=["step", "reduce"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    config = gpt_oss(arguments.model)
    line: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "model": arguments.model}
    if arguments.part != "reduce":
        line["whole"] = steps(config, config.vocab_size)
        line["half"] = steps(half(config), config.vocab_size)
    if arguments.part != "step":
        line["all_reduce_us"] = reduces(2 * config.num_hidden_layers, config.hidden_size)
    if arguments.part is None:
        line["bound"] = bounds(line, 2 * config.num_hidden_layers)
    print(json.dumps(line))
    if arguments.json:
        arguments.json.write_text(json.dumps(line, indent=1) + "\n")


def half(config: ModelConfig) -> ModelConfig:
    """What one of two GPUs would compute of every layer and of the vocabulary."""
    return replace(
        config,
        num_attention_heads=config.num_attention_heads // 2,
        num_key_value_heads=config.num_key_value_heads // 2,
        intermediate_size=config.intermediate_size // 2,
        vocab_size=config.vocab_size // 2,
    )


def steps(config: ModelConfig, num_embedded: int) -> list[dict[str, Any]]:
    """The decode step at each number of rows, context 128 to 384; embeddings are not split."""
    bandwidth = read_bandwidth()
    torch.cuda.empty_cache()
    whole = replace(config, vocab_size=num_embedded)
    weights = random_weights(whole, 1024, torch.device("cuda"))
    weights = replace(weights, head=weights.head[: config.vocab_size].contiguous())
    bench = Bench(Shape(config), weights, 64, bandwidth)
    found = []
    for rows in ROWS:
        step = bench.decode(rows, 128, steps=256)
        found.append({name: step[name] for name in ("rows", "ms", "tokens_per_s", "is_finite")})
        print(found[-1], flush=True)
        torch.cuda.empty_cache()
    return found


def bounds(line: dict[str, Any], num_reduces: int) -> list[dict[str, Any]]:
    """Half a step and its all-reduces beside a whole step."""
    found = []
    for whole, part in zip(line["whole"], line["half"], strict=True):
        rows = whole["rows"]
        for way, times in line["all_reduce_us"].items():
            ms = part["ms"] + num_reduces * times[str(rows)] / 1e3
            found.append(
                {"rows": rows, "way": way, "ms": round(ms, 3), "gain": round(whole["ms"] / ms, 3)}
            )
            print(found[-1], flush=True)
    return found


def reduces(count: int, width: int) -> dict[str, dict[str, float]]:
    """Microseconds of one all-reduce of so many, by NCCL and by symmetric memory, by rows."""
    os.environ |= _NO_MULTICAST
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (folder, count, width), nprocs=2)
        return dict(json.loads((Path(folder) / "found").read_text()))


def _rank(rank: int, folder: str, count: int, width: int) -> None:
    """One of the two processes; the first writes what it measured."""
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    store = f"file://{folder}/store"
    dist.init_process_group("nccl", init_method=store, rank=rank, world_size=2, device_id=device)
    found = {"nccl": _by_nccl(device, count, width)}
    try:
        found["symmetric_memory"] = _by_symmetric_memory(device, count, width)
    except Exception as error:  # not on every machine; the other figure stands
        print(f"symmetric memory: {type(error).__name__}: {error}", flush=True)
    if rank == 0:
        (Path(folder) / "found").write_text(json.dumps(found))
    dist.destroy_process_group()


def _by_nccl(device: torch.device, count: int, width: int) -> dict[str, float]:
    found = {}
    for rows in ROWS:
        values = torch.zeros((rows, width), dtype=torch.bfloat16, device=device)
        found[str(rows)] = _timed(partial(dist.all_reduce, values), count)
    return found


def _by_symmetric_memory(device: torch.device, count: int, width: int) -> dict[str, float]:
    import torch.distributed._symmetric_memory as symmetric

    assert dist.group.WORLD is not None
    found, group = {}, dist.group.WORLD.group_name
    reduce = torch.ops.symm_mem.one_shot_all_reduce
    for rows in ROWS:
        values = symmetric.empty((rows, width), dtype=torch.bfloat16, device=device)
        symmetric.rendezvous(values, group)
        values.zero_()
        found[str(rows)] = _timed(partial(reduce, values, "sum", group), count)
    return found


def _timed(launch: Callable[[], Any], count: int) -> float:
    """Median microseconds of one of `count` launches in a CUDA graph."""
    for _ in range(5):
        launch()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            launch()
    times: list[float] = []
    for _ in range(_REPLAYS):
        dist.barrier()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / count)
    return round(sorted(times)[_REPLAYS // 2], 2)


if __name__ == "__main__":
    main()
