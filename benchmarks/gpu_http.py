"""Streams over HTTP from the engine on this machine's GPU, beside the engine alone.

    python -m benchmarks.gpu_http [--model 20b|120b] [--streams N ...] [--json FILE]

Writes a random checkpoint of the true shape, serves it with `harmonium serve`, twice: the first
start finds nothing, the second what it left. Then it reads as many server-sent streams of raw
completions, and measures the engine alone in this process. Both figures are streams over the
median time of a stream's tokens after the first. Seconds to ready count from the command.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_disk import prompt_of, spec_for, together, write_vocabulary
from benchmarks.published import write_published
from benchmarks.startup import serving
from engines.factory import create
from engines.native.backends.cuda.random_model import gpt_oss

PROMPT, ANSWER = 128, 512
_LONGEST_START_S = 300.0
_HEAD = (
    "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    "Connection: close\r\nContent-Length: {length}\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Stream:
    """One streamed answer; seconds of the loop's clock."""

    asked_at: float
    first_at: float  # when the first byte of the body came
    ended_at: float
    is_whole: bool

    @property
    def s_per_token(self) -> float:
        return (self.ended_at - self.first_at) / (ANSWER - 1)


async def read_stream(port: int, prompt: Sequence[int], seed: int) -> Stream:
    """Ask for ANSWER tokens and read all of them, as cheap as a client can be."""
    body = json.dumps(
        {
            "model": "gpt-oss",
            "prompt": list(prompt),
            "max_tokens": ANSWER,
            "temperature": 1.0,
            "seed": seed,
            "stream": True,
        }
    ).encode()
    loop = asyncio.get_running_loop()
    asked_at = loop.time()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(_HEAD.format(length=len(body)).encode() + body)
    received = await reader.readuntil(b"\r\n\r\n")
    received += await reader.read(65536)
    first_at = loop.time()
    received += await reader.read()
    ended_at = loop.time()
    writer.close()
    is_whole = b'"finish_reason":"length"' in received and b"data: [DONE]" in received
    if not is_whole:
        print(received[:600], received[-600:], flush=True)
    return Stream(asked_at, first_at, ended_at, is_whole)


async def read_together(port: int, streams: int, vocab_size: int) -> dict[str, Any]:
    """So many streams at once, to the end."""
    prompts = [prompt_of(1000 * streams + n, PROMPT, vocab_size) for n in range(streams)]
    answers = await asyncio.gather(*(read_stream(port, p, n) for n, p in enumerate(prompts)))
    each = sorted(answer.s_per_token for answer in answers)
    median = each[len(each) // 2]
    return {
        "streams": streams,
        "tokens_per_s": round(streams / median, 1),
        "ms_per_token": round(median * 1e3, 4),
        "first_token_ms": round(min(a.first_at - a.asked_at for a in answers) * 1e3, 2),
        "is_whole": all(answer.is_whole for answer in answers),
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


def measure_http(
    folder: Path, cache: Path, model: str, streams: list[int], vocab_size: int
) -> dict[str, Any]:
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
            found = [
                [asyncio.run(read_together(port, n, vocab_size)) for _ in range(2)][-1]
                for n in asked
            ]
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
        http = measure_http(folder, cache, arguments.model, arguments.streams, model.vocab_size)
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
