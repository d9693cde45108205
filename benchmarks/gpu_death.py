"""Engines that die amid streams, with NIM_BATCH_INVARIANT and without: the words that follow.

    python -m benchmarks.gpu_death [--model 20b|120b] [--folder DIR] [--parts NAME ...]

Starts engines on a random checkpoint of the true shape, all on the first GPU, and kills one of them
under streams, greedy ones and drawn ones. A part is one engine, which is waited for, or two, where
the other goes on. Each part is told as soon as it is known, and one JSON line at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.gpu_disk import Run
from benchmarks.gpu_replica_death import death
from benchmarks.replicas import Replicas, gpus, written
from engines.native.backends.cuda.random_model import gpt_oss

PARTS: Final[dict[str, tuple[int, dict[str, Any]]]] = {  # engines, and their options
    "one": (1, {}),
    "one_invariant": (1, {"batch_invariant": True}),
    "one_invariant_ngram": (1, {"batch_invariant": True, "speculation": "ngram"}),
    "two_invariant": (2, {"batch_invariant": True}),
}


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_death", description=__doc__)
    parser.add_argument("--model", choices=["20b", "120b"], default="20b")
    parser.add_argument("--folder", type=Path, help="for the checkpoint and cache; kept if given")
    parser.add_argument("--parts", nargs="*", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--memory-fraction", type=float, default=0.3, help="of each engine")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    run = Run()
    with tempfile.TemporaryDirectory(prefix="harmonium-death-") as scratch:
        asyncio.run(_measure(run, arguments.folder or Path(scratch), arguments))
    line = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "model": arguments.model,
        **run.found,
    }
    print(json.dumps(line))
    if arguments.json:
        arguments.json.write_text(json.dumps(line, indent=1) + "\n")


async def _measure(run: Run, folder: Path, arguments: argparse.Namespace) -> None:
    await run.part("start_checkpoint", partial(written, folder, arguments.model))
    for name in arguments.parts:
        num_engines, options = PARTS[name]
        started = Replicas(gpus()[:1] * num_engines, arguments.memory_fraction)
        if await run.part(f"start_{name}", partial(started.start, folder, **options)):
            await run.part(name, partial(death, started, gpt_oss(arguments.model).vocab_size))
        await started.stop()


if __name__ == "__main__":
    main()
