"""The native engine on this machine's GPU from a checkpoint on disk: start, answers, speed.

    python -m tools.benchmarks.gpu_disk [--model 20b|120b] [--folder DIR] [--json FILE]

Writes a random checkpoint of the true shape in the published format, starts the engine on it as
a profile would, and asks what a service asks of it. Prints one line for each part and one JSON
line; a part that fails is told with its error, and the others still run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
import traceback
from base64 import b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engines.base import Engine, EngineRequest, SamplingParams, TokenEvent
from engines.factory import create
from engines.grammar.tree import Regex
from engines.native.backends.cuda.offline.published import gpt_oss
from engines.native.config import ModelConfig
from engines.spec import EngineSpec
from tools.benchmarks.published import write_published

_CONTROL = 1089  # ids at the end of the vocabulary that spell nothing
_TIMEOUT_S = 60  # of a part


@dataclass(slots=True)
class Asked:
    """One answer with the time of each event."""

    token_ids: list[int] = field(default_factory=list)
    events: list[TokenEvent] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)


async def ask(
    engine: Engine, name: str, prompt: tuple[int, ...], params: SamplingParams, **more: Any
) -> Asked:
    asked = Asked()
    request = EngineRequest(name, prompt, params, **more)
    async for event in engine.generate(request):
        asked.arrivals.append(time.perf_counter())
        asked.token_ids += event.token_ids
        asked.events.append(event)
    return asked


def prompt_of(seed: int, length: int, vocab_size: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    high = vocab_size - _CONTROL
    return tuple(torch.randint(0, high, (length,), generator=generator).tolist())


async def greedy_twice(engine: Engine) -> dict[str, Any]:
    """Equal requests, the cache shared and not: the same tokens."""
    params = SamplingParams(64, temperature=0.0)
    prompt = prompt_of(1, 200, engine.info.vocab_size)
    first = await ask(engine, "g1", prompt, params, cache_salt="a")
    apart = await ask(engine, "g2", prompt, params, cache_salt="b")
    cached = await ask(engine, "g3", prompt, params, cache_salt="a")
    return {
        "num_tokens": len(first.token_ids),
        "num_distinct": len(set(first.token_ids)),
        "is_equal": first.token_ids == apart.token_ids,
        "is_equal_from_cache": first.token_ids == cached.token_ids,
        "num_cached_tokens": cached.events[0].num_cached_tokens,
    }


async def everything_asked(engine: Engine) -> dict[str, Any]:
    """Penalties, filters, a bias and log-probabilities in one request."""
    params = SamplingParams(
        48, temperature=0.8, top_p=0.9, top_k=20, min_p=0.02, presence_penalty=0.5,
        frequency_penalty=0.5, repetition_penalty=1.1, logit_bias={5: 2.0, 6: -100.0}, seed=7,
        logprobs=4,
    )  # fmt: skip
    prompt = prompt_of(2, 300, engine.info.vocab_size)
    first = await ask(engine, "e1", prompt, params, cache_salt="a")
    again = await ask(engine, "e2", prompt, params, cache_salt="b")
    logprobs = [entry for event in first.events for entry in event.logprobs or ()]
    return {
        "num_tokens": len(first.token_ids),
        "is_repeated_by_seed": first.token_ids == again.token_ids,
        "is_logprob_of_token": [e.token_id for e in logprobs] == first.token_ids,
        "has_four_rivals": all(len(entry.top) == 4 for entry in logprobs),
        "is_logprob_negative": all(entry.logprob <= 0 for entry in logprobs),
    }


async def abort(engine: Engine) -> dict[str, Any]:
    """Close an answer early: nothing keeps running and no block stays taken."""
    stream = engine.generate(
        EngineRequest(
            "a", prompt_of(3, 100, engine.info.vocab_size), SamplingParams(2000, temperature=1.0)
        )
    )
    num_events = 0
    async for _ in stream:
        num_events += 1
        if num_events == 10:
            break
    await stream.aclose()
    while (stats := await engine.stats()).num_running:
        await asyncio.sleep(0.01)
    return {"events": num_events, "is_all_freed": stats.num_free_kv_blocks == stats.num_kv_blocks}


async def grammar(engine: Engine) -> dict[str, Any]:
    """An answer that may only be digits between brackets, as vocabulary() spells them."""
    size = engine.info.vocab_size
    asked = await ask(
        engine, "r", prompt_of(4, 64, size), SamplingParams(64, temperature=1.0, seed=1),
        grammar=Regex(r"\[[0-9]{8,12}\]"), stop_token_ids=(size - 2,),
    )  # fmt: skip
    text = b"".join(spelling(id) for id in asked.token_ids if id < size - _CONTROL)
    return {"text": text.decode(), "finish_reason": str(asked.events[-1].finish_reason)}


async def together(engine: Engine, streams: int, prompt: int, answer: int) -> dict[str, Any]:
    """So many requests at once, to the end; tok/s as streams over the median inter-token time."""
    size = engine.info.vocab_size
    start = time.perf_counter()
    answers = await asyncio.gather(
        *(
            ask(
                engine, f"t{n}", prompt_of(1000 * streams + n, prompt, size),
                SamplingParams(answer, temperature=1.0, seed=n),
            )
            for n in range(streams)
        )
    )  # fmt: skip
    elapsed = time.perf_counter() - start
    each = sorted((a.arrivals[-1] - a.arrivals[0]) / (len(a.token_ids) - 1) for a in answers)
    median = each[len(each) // 2]
    return {
        "streams": streams,
        "prompt": prompt,
        "answer": answer,
        "tokens_per_s": round(streams / median, 1),
        "tokens_per_s_with_prompts": round(sum(len(a.token_ids) for a in answers) / elapsed, 1),
        "ms_per_token": round(median * 1e3, 4),
        "first_token_ms": round((min(a.arrivals[0] for a in answers) - start) * 1e3, 2),
        "last_first_token_ms": round((max(a.arrivals[0] for a in answers) - start) * 1e3, 2),
        "is_whole": all(len(a.token_ids) == answer for a in answers),
    }


def spelling(token_id: int) -> bytes:
    """Single bytes, then hexadecimal words: a vocabulary that spells every text."""
    return bytes([token_id]) if token_id < 256 else b"~%x" % token_id


def write_vocabulary(path: Path, vocab_size: int) -> None:
    lines = (b64encode(spelling(i)).decode() + f" {i}" for i in range(vocab_size - _CONTROL))
    path.write_text("\n".join(lines))


def spec_for(folder: Path, device: torch.device, limits: dict[str, int]) -> EngineSpec:
    """What the native profiles for Hopper say."""
    on_gpu = device.type == "cuda"
    options = {"dtype": "bfloat16", "block_size": 64, "overlap_steps": True}
    return EngineSpec(
        "native", options=options if on_gpu else {}, limits=limits, model_dir=str(folder),
        vocabulary_path=str(folder / "vocabulary.tiktoken"), num_devices=int(on_gpu),
        memory_fraction=0.9, precision="mxfp4" if on_gpu else None,
        kv_dtype="bf16" if on_gpu else None,
    )  # fmt: skip


@dataclass(slots=True)
class Run:
    """Parts, each told as soon as it is known."""

    found: dict[str, Any] = field(default_factory=dict)

    async def part(self, name: str, of: Callable[[], Awaitable[Any]]) -> bool:
        start = time.perf_counter()
        try:
            async with asyncio.timeout(None if name.startswith("start") else _TIMEOUT_S):
                self.found[name] = await of()
        except Exception as error:  # a part's failure is a result
            traceback.print_exc()
            self.found[name] = {"error": f"{type(error).__name__}: {error}"}
        took = time.perf_counter() - start
        print(f"{name} ({took:.2f} s): {json.dumps(self.found[name])}", flush=True)
        return "error" not in self.found[name]


async def started(engine: Engine, on_gpu: bool) -> dict[str, Any]:
    """Seconds from start() to ready, and what is then offered."""
    start = time.perf_counter()
    await engine.start()
    ready = time.perf_counter() - start
    stats = await engine.stats()
    if on_gpu and not torch.cuda.memory_allocated():
        raise AssertionError("the engine runs, and holds nothing on the GPU")
    return {
        "ready_s": round(ready, 2),
        "max_model_len": engine.info.max_model_len,
        "num_kv_blocks": stats.num_kv_blocks,
        "gpu_gb": round(torch.cuda.memory_allocated() / 1e9, 2),
    }


async def measure(
    folder: Path, model: ModelConfig, device: torch.device, limits: dict[str, int],
    cases: list[tuple[int, int, int]],
) -> dict[str, Any]:  # fmt: skip
    run, on_gpu = Run(), device.type == "cuda"

    async def write() -> dict[str, Any]:
        start = time.perf_counter()
        num_bytes = write_published(folder, model, device)
        write_vocabulary(folder / "vocabulary.tiktoken", model.vocab_size)
        return {"gb": round(num_bytes / 1e9, 2), "s": round(time.perf_counter() - start, 1)}

    if not await run.part("checkpoint", write):
        return run.found
    if on_gpu:
        torch.cuda.empty_cache()
    spec = spec_for(folder, device, limits)
    for attempt in ("start_cold", "start_warm"):  # the kernels compiled, and found compiled
        engine = create(spec)
        if await run.part(attempt, lambda engine=engine: started(engine, on_gpu)):  # type: ignore[misc]
            if attempt == "start_cold":
                await answers(run, engine, cases)
            else:
                await run.part("greedy_after_restart", lambda engine=engine: greedy_twice(engine))  # type: ignore[misc]
        await run.part(f"stop_{attempt}", lambda engine=engine: stopped(engine))  # type: ignore[misc]
    return run.found


async def answers(run: Run, engine: Engine, cases: list[tuple[int, int, int]]) -> None:
    await run.part("greedy", lambda: greedy_twice(engine))
    await run.part("everything", lambda: everything_asked(engine))
    await run.part("abort", lambda: abort(engine))
    await run.part("grammar", lambda: grammar(engine))
    for streams, prompt, answer in cases:
        name = f"streams_{streams}_prompt_{prompt}"
        await run.part(name, lambda s=streams, p=prompt, a=answer: together(engine, s, p, a))  # type: ignore[misc]


async def stopped(engine: Engine) -> dict[str, Any]:
    await engine.stop()
    return {"gpu_gb_left": round(torch.cuda.memory_allocated() / 1e9, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["20b", "120b"], default="20b")
    parser.add_argument("--folder", type=Path, help="where the checkpoint goes; it is removed")
    parser.add_argument("--max-num-seqs", type=int, default=128)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="harmonium-gpu-"))
    limits = {
        "max_model_len": 131072,
        "max_num_seqs": arguments.max_num_seqs,
        "max_num_batched_tokens": arguments.max_num_batched_tokens,
    }
    cases = [(1, 128, 512), (1, 8000, 64), (8, 128, 512), (32, 128, 512), (128, 128, 512)]
    cases = [case for case in cases if case[0] <= arguments.max_num_seqs]
    try:
        found = asyncio.run(
            measure(folder, gpt_oss(arguments.model), torch.device("cuda"), limits, cases)
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    line = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "model": arguments.model,
        "limits": limits,
        **found,
    }
    print(json.dumps(line))
    if arguments.json:
        arguments.json.write_text(json.dumps(line, indent=1) + "\n")


if __name__ == "__main__":
    main()
