"""What the fields of a request cost on this machine's GPU: time per token beside a plain one's.

    python -m tools.benchmarks.gpu_fields [--streams 1 32 128] [--repeats 3] [--json FILE]

gpt-oss-20b with random weights: their logits are nearly even, so that top_p leaves most of the
vocabulary, which is the slowest case. One backend; every case after every other, `--repeats` times.
"""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from engines.native.assemble import assemble_core
from engines.native.backends.base import Capacity
from engines.native.backends.cuda.backend import CudaBackend
from engines.native.backends.cuda.offline.published import gpt_oss
from engines.native.backends.cuda.passes.stages import ModelPart
from engines.native.config import NativeConfig
from engines.native.kv_pool import layers_per_group
from tools.benchmarks.gpu_engine import Load, serve_on
from tools.benchmarks.random_model import random_weights

_BLOCK: Final = 64
_PENALTIES: Final = {
    "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1,
}  # fmt: skip
_ALL: Final = {"top_p": 0.9, "top_k": 40, "presence_penalty": 0.5, "logprobs": 5}
CASES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "logit_bias of 300": {"logit_bias": {600 * i: 1.0 for i in range(300)}},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 40": {"top_k": 40},
    "min_p 0.05": {"min_p": 0.05},
    "three penalties": _PENALTIES,
    "logprobs 5": {"logprobs": 5},
    "logprobs 20": {"logprobs": 20},
    "top_p, top_k, penalty, logprobs": _ALL,
}


class Bench:
    """A backend for up to so many streams."""

    def __init__(self, streams: int, longest: Load) -> None:
        self._model, device = gpt_oss("20b"), torch.device("cuda", 0)
        weights = random_weights(self._model, 9000, device)
        torch.cuda.empty_cache()
        num_blocks = longest.num_blocks(_BLOCK, self._model.sliding_window)
        size = layers_per_group(self._model), num_blocks, _BLOCK * 2 * self._model.kv_size
        part = ModelPart(
            self._model, weights, torch.zeros(size, dtype=torch.bfloat16, device=device)
        )
        capacity = Capacity(num_blocks, _BLOCK, longest.longest)
        self._backend = CudaBackend(self._model, [part], capacity, streams, longest.chunk)
        self._config = NativeConfig(
            Path(), dtype="bfloat16", max_num_seqs=streams, max_num_batched_tokens=longest.chunk,
            overlap_steps=True, enable_prefix_caching=False,
        )  # fmt: skip

    def ms_per_token(self, load: Load) -> float:
        """Of the median stream."""
        model = self._model
        core = assemble_core(self._config, self._backend, model.sliding_window, model.vocab_size)
        return float(serve_on(core, model.vocab_size, load)["ms_per_token"])


def main() -> None:
    """Print a table for each number of streams; the JSON is written after each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 32, 128])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--answer", type=int, default=192, help="tokens")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    line: dict[str, Any] = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__}
    most = max(arguments.streams)
    with torch.inference_mode():
        bench = Bench(most, Load(most, 128, arguments.answer, most))
        gc.collect()
        gc.freeze()  # as the engine's process does
        for streams in arguments.streams:
            times: dict[str, list[float]] = {name: [] for name in CASES}
            for number in range(arguments.repeats + 1):  # the first one warms up
                for name, asked in CASES.items():
                    load = Load(streams, 128, arguments.answer, streams, asked=asked)
                    found = bench.ms_per_token(load)
                    if number:
                        times[name].append(found)
            plain = median(times["plain"])
            line[str(streams)] = {
                name: {"ms": each, "share_of_plain": round(median(each) / plain, 3)}
                for name, each in times.items()
            }
            for name, each in times.items():
                ms = median(each)
                print(f"{streams:4} {name:32} {ms:8.3f} ms {ms / plain:7.3f}", flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(line, indent=1) + "\n")


if __name__ == "__main__":
    main()
