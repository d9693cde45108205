"""Streams over HTTP from the engine on this machine's GPU, beside the engine alone.

    python -m tools.benchmarks.gpu_http [--model 20b|120b] [--streams N ...] [--json FILE]

Writes a random checkpoint of the true shape, serves it with `harmonium serve`, twice: the first
start finds nothing, the second what it left. Then it reads as many server-sent streams of raw
completions, and measures the engine alone in this process. Both figures are streams over the
median time of a stream's tokens after the first. Seconds to ready count from the command.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engines.factory import create
from engines.native.backends.cuda.offline.published import gpt_oss
from tools.benchmarks.gpu_disk import spec_for, together, write_vocabulary
from tools.benchmarks.published import write_published
from tools.benchmarks.serving.client import Connector, Server
from tools.benchmarks.serving.figures import Objective, figures
from tools.benchmarks.serving.traffic import Burst
from tools.benchmarks.startup import serving

PROMPT, ANSWER = 128, 512
_LONGEST_START_S = 300.0


async def read_together(port: int, streams: int) -> dict[str, Any]:
    """So many streams at once, to the end."""
    connector = Connector(
        Server("", f"http://127.0.0.1:{port}", "gpt-oss", extra={"ignore_eos": True})
    )
    load = Burst(streams, prompt=PROMPT, answer=ANSWER)
    found = figures(await load.run(connector, seed=0), Objective())["groups"]["all"]
    median_ms = found["ms_per_token"].get("p50", math.nan)
    return {
        "streams": streams,
        "tokens_per_s": round(streams / median_ms * 1e3, 1),
        "ms_per_token": median_ms,
        "first_token_p50_ms": found["ttft_ms"].get("p50"),
        "is_whole": found["whole"] == streams,
    }


async def measure_engine(
    folder: Path, cache: Path, limits: dict[str, int], streams: list[int]
) -> list[dict[str, Any]]:
    """The engine alone, in this process, each number of streams once to warm up."""
    if not streams:  # only the starts are asked for
        return []
    spec = spec_for(folder, torch.device("cuda"), limits)
    options = {**spec.options, "speculation": "ngram"}  # as the profile has it
    engine = create(replace(spec, options=options, artefact_dir=str(cache / "engines")))
    await engine.start()
    try:
        return [[await together(engine, n, PROMPT, ANSWER) for _ in range(2)][-1] for n in streams]
    finally:
        await engine.stop()


def measure_http(folder: Path, cache: Path, model: str, streams: list[int]) -> dict[str, Any]:
    """Two starts, and the streams over HTTP after the second."""
    os.environ |= {
        "NIM_AUTH": "off",
        "NIM_MODEL_NAME": f"gpt-oss-{model}",
        "NIM_MODEL_PATH": str(folder),
        "NIM_MODEL_PROFILE": "native-hopper-mxfp4-tp1-pp1-throughput",
        "NIM_SERVED_MODEL_NAME": "gpt-oss",
        "TRITON_CACHE_DIR": str(cache / "triton"),  # Triton knows nothing else
    }
    ready_s, found = [], []
    for asked in ([], streams):
        began = time.perf_counter()
        with serving(cache, _LONGEST_START_S) as url:
            ready_s.append(round(time.perf_counter() - began, 2))
            print("ready", ready_s, flush=True)
            port = int(url.rpartition(":")[2])
            found = [[asyncio.run(read_together(port, n)) for _ in range(2)][-1] for n in asked]
    return {"ready_s": ready_s, "streams": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["20b", "120b"], default="20b")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 32, 128])
    parser.add_argument("--folder", type=Path, help="of a checkpoint; written where there is none")
    parser.add_argument("--cache", type=Path, help="what starts leave; a new one by default")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    model = gpt_oss(arguments.model)
    scratch = Path(tempfile.mkdtemp(prefix="harmonium-gpu-"))
    folder: Path = arguments.folder or scratch / "model"
    cache: Path = arguments.cache or scratch / "cache"
    try:
        if not (folder / "config.json").exists():
            write_published(folder, model, torch.device("cuda"))
            write_vocabulary(folder / "vocabulary.tiktoken", model.vocab_size)
            torch.cuda.empty_cache()
        http = measure_http(folder, cache, arguments.model, arguments.streams)
        print("http", json.dumps(http), flush=True)
        # As the profile that is served has them.
        limits = {"max_model_len": 131072, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
        alone = asyncio.run(measure_engine(folder, cache, limits, arguments.streams))
        print("engine", json.dumps(alone), flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    shares = [
        round(over["tokens_per_s"] / engine["tokens_per_s"], 4)
        for over, engine in zip(http["streams"], alone, strict=True)
    ]
    line = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cpus": os.cpu_count(),
        "model": arguments.model,
        "engine": alone,
        "http": http,
        "http_share_of_engine": shares,
    }
    print(json.dumps(line))
    if arguments.json:
        arguments.json.write_text(json.dumps(line, indent=1) + "\n")


if __name__ == "__main__":
    main()
