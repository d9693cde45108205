"""Traffic at the engine on this machine's GPU, by goal; and what steps take.

    python -m tools.benchmarks.gpu_traffic [--gaps 50 20 0] [--parts steps loads] [--json FILE]

gpt-oss-20b with random weights, all in this process, without HTTP. `steps`: milliseconds of chunks
by depth, of rows by context, and of both together; of a chunk whose states are all wanted beside
one whose last is. `loads`: poisson=40, 24 and 64 agents, 32 streams beside a prompt of 100,000
tokens, prompts of 8,000 to 120,000 and 400 requests at once, for each longest gap in milliseconds
(0: any). Padding is the share of the chunks' rows that no token has.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from engines.native.assemble import assemble_core
from engines.native.backends.base import Batch, Capacity
from engines.native.backends.cuda.backend import CudaBackend
from engines.native.backends.cuda.graphs.captured import prefill_sizes
from engines.native.backends.cuda.offline.published import gpt_oss
from engines.native.backends.cuda.passes.stages import ModelPart
from engines.native.backends.cuda.steps.verify import draft_capacity
from engines.native.calibration import Calibration, calibrate
from engines.native.config import NativeConfig
from engines.native.loop.core import EngineCore
from engines.native.loop.step_costs import StepCosts
from tools.benchmarks.engine_traffic import Traffic, agents, beside, burst, poisson
from tools.benchmarks.random_model import random_weights

_DEVICE: Final = torch.device("cuda")
_BLOCK: Final = 64
_SEQUENCES: Final = 512
_DEPTHS: Final = (0, 16_384, 32_768, 65_536, 100_000, 120_000)
_CHUNKS: Final = (64, 192, 256, 384, 408, 512, 768, 1024, 1536, 2048)
_CONTEXTS: Final = (64, 4096, 16_384, 30_000)
_ROWS: Final = (1, 8, 24, 32, 64, 128)
_MIXED: Final = ((24, 21_000), (64, 21_000), (32, 2000), (128, 600))
_LOADS: Final[dict[str, Callable[[], Traffic]]] = {
    "poisson=40": lambda: poisson(40),
    "agents=24": lambda: agents(24),
    "agents=64": lambda: agents(64),
    "beside=100000": lambda: beside(100_000),
    "burst=400": lambda: burst(400),
    **{f"long={n}": lambda n=n: burst(1, n, 2) for n in (8000, 32_000, 64_000, 120_000)},  # type: ignore[misc]
}


class Bench:
    """A backend on the device, and cores of it."""

    def __init__(self, num_blocks: int) -> None:
        self.config = config = gpt_oss("20b")
        weights = random_weights(config, config.max_position_embeddings + _BLOCK, _DEVICE)
        values = _BLOCK * 2 * config.kv_size
        cache = torch.zeros((12, num_blocks, values), dtype=torch.bfloat16, device=_DEVICE)
        self.native = NativeConfig(
            Path(), "cuda", dtype="bfloat16", max_num_seqs=_SEQUENCES, max_num_batched_tokens=8192,
            speculation="ngram", overlap_steps=True,
        )  # fmt: skip
        drafts = draft_capacity(self.native, config)
        capacity = Capacity(num_blocks, _BLOCK, config.max_position_embeddings, **drafts)
        parts = [ModelPart(config, weights, cache)]
        self.backend = CudaBackend(config, parts, capacity, _SEQUENCES, 8192)
        limits = self.core(None).scheduler.limits
        begun_s = time.perf_counter()
        self.costs = calibrate(self.backend, limits, config.vocab_size, 2.0).as_dict()
        self.calibrated_s = round(time.perf_counter() - begun_s, 2)
        self.steps = Calibration(self.backend, limits, config.vocab_size, 600.0, time.perf_counter)

    def core(self, gap_ms: float | None) -> EngineCore:
        native, config = replace(self.native, max_token_gap_ms=gap_ms), self.config
        core = assemble_core(native, self.backend, config.sliding_window, config.vocab_size)
        if gap_ms is not None:
            core.scheduler.costs = StepCosts.from_dict(self.costs)
        return core

    def load(self, make: Callable[[], Traffic], gap_ms: float | None) -> dict[str, Any]:
        """Run a load with an empty cache."""
        gc.collect()
        core, traffic = self.core(gap_ms), make()
        with _chunks_of(self.backend) as chunks:
            traffic.run(core)
        tokens, rows = sum(num for num, _ in chunks), sum(size for _, size in chunks)
        return {
            **traffic.figures(),
            "cost_error": round(core.scheduler.costs.error, 3),
            "padding": round(1 - tokens / max(rows, 1), 3),
        }

    def ms(self, batch: Callable[[], Batch]) -> float:
        return round(1e3 * self.steps.time_of(batch), 2)

    def measure_steps(self) -> dict[str, Any]:
        steps = self.steps
        found = {
            f"chunk {num}@{depth}": self.ms(lambda: steps.prefill(depth, num))  # noqa: B023
            for depth in _DEPTHS
            for num in _CHUNKS
        }
        for rows, context in ((r, c) for c in _CONTEXTS for r in _ROWS if r * c < 2_000_000):
            found[f"rows {rows}@{context}"] = self.ms(lambda: steps.decode(rows, context))  # noqa: B023
        for rows, context in _MIXED:
            for start, num in ((0, 256), (21_000, 512), (21_000, 1500)):
                found[f"rows {rows}@{context} chunk {num}@{start}"] = self.ms(
                    lambda: steps.mixed(rows, num, context=context, start=start)  # noqa: B023
                )
        return found


@contextmanager
def _chunks_of(backend: CudaBackend) -> Iterator[list[tuple[int, int]]]:
    """The tokens of every chunk that is computed in the block, and the rows of its graph."""
    chunks: list[tuple[int, int]] = []
    graphs: Any = backend._prefiller._graphs
    run, sizes = graphs.run, prefill_sizes(8192)

    def noting(num: int) -> None:
        chunks.append((num, min(size for size in sizes if size >= num)))
        run(num)

    graphs.run = noting
    try:
        yield chunks
    finally:
        del graphs.run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gaps", type=float, nargs="+", default=[50, 0], help="milliseconds")
    parser.add_argument(
        "--parts", nargs="+", choices=["steps", "loads"], default=["steps", "loads"]
    )
    parser.add_argument("--loads", nargs="+", choices=[*_LOADS], default=[*_LOADS])
    parser.add_argument("--blocks", type=int, default=40_000, help="of KV, 1.6 MB each")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    bench = Bench(given.blocks)
    line: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
        "calibrated_s": bench.calibrated_s, "costs": bench.costs,
    }  # fmt: skip

    def found(name: str, result: Any) -> None:
        """Print and keep it at once: a run that is cut loses nothing."""
        line[name] = result
        print(f"{name}: {json.dumps(result)}", flush=True)
        if given.json:
            given.json.write_text(json.dumps(line, indent=1) + "\n")

    if "steps" in given.parts:
        found("steps_ms", bench.measure_steps())
    for gap_ms in given.gaps if "loads" in given.parts else []:
        for name in given.loads:
            found(f"{name} gap {gap_ms:g} ms", bench.load(_LOADS[name], gap_ms or None))


if __name__ == "__main__":
    main()
