"""A model whose layers are split over the GPUs of this machine, each held to some memory.

    python -m tools.benchmarks.gpu_stages [--model 120b] [--gpus 2] [--gb 48] [--store DIR]
        [--folder DIR]

Parts, each with random weights. `split`: the large model over the GPUs, none of which may
take more than --gb; streams of 128 tokens in and 512 out, and the first token of long prompts.
`whole`: the same on one GPU that holds everything. `same`: gpt-oss-20b on one GPU and split, which
have to give the same tokens and log-probabilities. `started`: the large model, split and on one
GPU, from the checkpoint in --folder, which is written if it is not there.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from engines.base import EngineRequest, SamplingParams, TokenEvent
from engines.native.assemble import assemble_core, load_core
from engines.native.backends.base import Capacity
from engines.native.backends.cuda.artefact.kept import Artefact
from engines.native.backends.cuda.backend import CudaBackend
from engines.native.backends.cuda.card import Card
from engines.native.backends.cuda.loading import num_blocks_on, with_blocks
from engines.native.backends.cuda.offline.published import gpt_oss
from engines.native.backends.cuda.steps.verify import draft_capacity
from engines.native.backends.cuda.weights.model import ModelWeights
from engines.native.config import ModelConfig, NativeConfig
from engines.native.layer_split import part_of, split_layers
from engines.native.loop.core import EngineCore
from tools.benchmarks.gpu_engine import Load, serve_on
from tools.benchmarks.published import write_published
from tools.benchmarks.random_model import part_of_weights, random_part, random_weights

_STREAMS: Final = 32
_CHUNK: Final = 2048
_LONGEST: Final = 40_000
_LOADS: Final = (
    Load(1, 128, 512, 1, _CHUNK),
    Load(8, 128, 512, 8, _CHUNK),
    Load(32, 128, 512, 32, _CHUNK),
    Load(1, 8192, 1, 1, _CHUNK),
    Load(1, 8192, 1, 1, _CHUNK),  # again: the first of these warms up
    Load(1, 32768, 1, 1, _CHUNK),
)
_LENGTHS: Final = (1, 40, 300, 700, 2500, 5000)  # of the prompts that are compared


def options(arguments: argparse.Namespace, num_gpus: int, **other: Any) -> NativeConfig:
    """As a profile has them, for so many GPUs of which --gb may be taken."""
    total = torch.cuda.get_device_properties(0).total_memory
    folder = other.pop("model_dir", Path())
    return NativeConfig(
        folder, "cuda", "bfloat16", num_gpus=num_gpus, max_model_len=_LONGEST,
        max_num_seqs=_STREAMS, max_num_batched_tokens=_CHUNK, block_size=64, overlap_steps=True,
        memory_fraction=0.9 * arguments.gb * 1e9 / total, artefact_dir=arguments.store, **other,
    )  # fmt: skip


def core_of(config: NativeConfig, model: ModelConfig, weights: list[ModelWeights]) -> EngineCore:
    """A core over these parts of a model, with as many blocks as the fullest GPU holds."""
    split = split_layers(model.num_hidden_layers, len(weights))
    shapes = [part_of(model, layers) for layers in split]
    pairs = [*zip(shapes, weights, strict=True)]
    blocks = min(num_blocks_on(config, shape, w.cosines.device) for shape, w in pairs)
    parts = [with_blocks(shape, w, blocks, config.block_size) for shape, w in pairs]
    capacity = Capacity(blocks, config.block_size, _LONGEST, **draft_capacity(config, model))
    capability = Card.of(parts[0].cache.device).capability
    with Artefact(config, model).kernels(capability):
        backend = CudaBackend(model, parts, capacity, _STREAMS, _CHUNK)
    return assemble_core(config, backend, model.sliding_window, model.vocab_size)


@contextmanager
def held_to(gigabytes: float, num_gpus: int) -> Iterator[None]:
    """A block in which torch's allocator refuses more on each GPU."""
    total = torch.cuda.get_device_properties(0).total_memory
    for index in range(num_gpus):
        torch.cuda.set_per_process_memory_fraction(min(gigabytes * 1e9 / total, 1.0), index)
        torch.cuda.reset_peak_memory_stats(index)
    try:
        yield
    finally:
        for index in range(num_gpus):
            torch.cuda.set_per_process_memory_fraction(1.0, index)


def loads(arguments: argparse.Namespace, num_gpus: int, gigabytes: float) -> dict[str, Any]:
    """Figures of the large model over so many GPUs."""
    model, began_s = gpt_oss(arguments.model), time.perf_counter()
    with held_to(gigabytes, num_gpus):
        split = split_layers(model.num_hidden_layers, num_gpus)
        weights = [
            random_part(model, layers, _LONGEST, torch.device("cuda", index))
            for index, layers in enumerate(split)
        ]
        torch.cuda.empty_cache()
        made_s = time.perf_counter() - began_s
        weights_gb = [round(torch.cuda.memory_allocated(i) / 1e9, 2) for i in range(num_gpus)]
        limits = argparse.Namespace(gb=gigabytes, store=arguments.store)
        config = options(limits, num_gpus, enable_prefix_caching=False)
        core = core_of(config, model, weights)
        found: dict[str, Any] = {
            "gpus": num_gpus,
            "gb_each": gigabytes,
            "weights_gb": weights_gb,
            "kv_tokens": core.backend.capacity.num_blocks * config.block_size,
            "weights_made_s": round(made_s, 1),
            "ready_s": round(time.perf_counter() - began_s, 1),
            "loads": [serve_on(core, model.vocab_size, load) for load in _LOADS],
        }
        found["reserved_gb"] = [
            round(torch.cuda.max_memory_reserved(index) / 1e9, 2) for index in range(num_gpus)
        ]
    return found


def answers(core: EngineCore, vocab_size: int) -> list[Any]:
    """Tokens with their log-probabilities: greedy and drawn, then with the prompts in the cache."""
    generator = torch.Generator().manual_seed(1)
    prompts = [
        torch.randint(0, vocab_size - 1000, (n,), generator=generator).tolist() for n in _LENGTHS
    ]
    found: list[Any] = []
    for temperature in (0.0, 1.0, 0.0):
        sampling = SamplingParams(max_tokens=48, temperature=temperature, seed=7, logprobs=2)
        sequences = {}
        for number, prompt in enumerate(prompts):
            request = EngineRequest(f"{len(found)}-{number}", tuple(prompt), sampling)
            sequences[core.scheduler.add(request)] = number
        told: dict[int, list[Any]] = {number: [] for number in range(len(prompts))}
        cached = 0
        while core.has_work:
            for sequence, event in core.step():
                assert isinstance(event, TokenEvent), event
                told[sequences[sequence]].append((event.token_ids, event.logprobs))
                cached = max(cached, event.num_cached_tokens)
        found.append((cached, told))
    return found


def same(arguments: argparse.Namespace) -> dict[str, Any]:
    """gpt-oss-20b on one GPU, over two, and in four stages on two: how many answers are equal."""
    model = gpt_oss("20b")
    weights = random_weights(model, _LONGEST, torch.device("cuda", 0))
    config = options(arguments, 1, num_kv_blocks=2000)
    expected = answers(core_of(config, model, [weights]), model.vocab_size)
    free()
    found: dict[str, Any] = {"cached_tokens": [cached for cached, _ in expected]}
    for num_stages in (2, 4):
        split = split_layers(model.num_hidden_layers, num_stages)
        places = [i * arguments.gpus // num_stages for i in range(num_stages)]
        moved = [
            part_of_weights(weights, layers, torch.device("cuda", index))
            for layers, index in zip(split, places, strict=True)
        ]
        given = answers(core_of(config, model, moved), model.vocab_size)
        pairs = [
            (told[number], other[number])
            for (_, told), (_, other) in zip(expected, given, strict=True)
            for number in told
        ]
        found[f"{num_stages}_stages"] = {
            "answers": len(pairs),
            "equal_to_the_bit": sum(one == other for one, other in pairs),
        }
        free()
    return found


def started(arguments: argparse.Namespace) -> dict[str, Any]:
    """The large model from a checkpoint by the engine's own loader, split and on one GPU."""
    model = gpt_oss(arguments.model)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="harmonium-stages-") as scratch:
        folder = arguments.folder or Path(scratch)
        if not (folder / "config.json").exists():
            write_published(folder, model, torch.device("cuda", 0))
            free()
        told = []
        for num_gpus in (arguments.gpus, 1):
            total = torch.cuda.get_device_properties(0).total_memory / 1e9
            gigabytes = arguments.gb if num_gpus > 1 else total
            limits = argparse.Namespace(gb=gigabytes, store=arguments.store)
            began_s = time.perf_counter()
            with held_to(gigabytes, num_gpus):
                core = load_core(options(limits, num_gpus, model_dir=folder))
                found[f"ready_s_on_{num_gpus}"] = round(time.perf_counter() - began_s, 1)
                told.append(answers(core, model.vocab_size))
                found[f"reserved_gb_on_{num_gpus}"] = [
                    round(torch.cuda.max_memory_reserved(i) / 1e9, 2) for i in range(num_gpus)
                ]
            del core
            free()
    found["answers"] = sum(len(of_prompts) for _, of_prompts in told[0])
    found["is_equal"] = told[0] == told[1]
    return found


def free() -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    torch.cuda.empty_cache()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["20b", "120b"], default="120b")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--gb", type=float, default=48.0, help="what each GPU may take")
    parser.add_argument("--parts", nargs="+", default=["split", "whole", "same", "started"])
    parser.add_argument("--store", type=Path, help="compiled kernels: backends/cuda/offline")
    parser.add_argument("--folder", type=Path, help="of a checkpoint of --model")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    total = torch.cuda.get_device_properties(0).total_memory / 1e9
    parts: dict[str, Callable[[], Any]] = {
        "split": lambda: loads(arguments, arguments.gpus, arguments.gb),
        "whole": lambda: loads(arguments, 1, total),
        "same": lambda: same(arguments),
        "started": lambda: started(arguments),
    }
    line: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(0),
        "gpus": torch.cuda.device_count(),
        "peer_access": torch.cuda.can_device_access_peer(0, arguments.gpus - 1),
        "torch": torch.__version__,
        "model": arguments.model,
    }
    for name in arguments.parts:
        began_s = time.perf_counter()
        with torch.inference_mode():
            line[name] = parts[name]()
        free()
        line[f"{name}_s"] = round(time.perf_counter() - began_s, 1)
        print(name, json.dumps(line[name]), f"{line[f'{name}_s']} s", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(line, indent=1) + "\n")


if __name__ == "__main__":
    main()
