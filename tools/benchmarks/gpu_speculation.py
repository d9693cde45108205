"""What guessing tokens gains, and what independence of batch neighbours costs, on this GPU.

    python -m tools.benchmarks.gpu_speculation [--model 20b|120b] [--streams N ...] [--json FILE]

Random MXFP4 weights of the true shape, the engine's core with its scheduler and overlapped loop.
Two texts: one as random weights write it, and one that repeats itself, for which the head is made
to prefer the next token of a circle. Each with and without speculation by n-grams, and once more
with one size of step for all (batch_invariant). Prints tables and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from engines.base import EngineRequest, SamplingParams, TokenEvent
from engines.native.assemble import assemble_core
from engines.native.backends.base import Capacity
from engines.native.backends.cuda.backend import CudaBackend
from engines.native.backends.cuda.passes.stages import ModelPart
from engines.native.backends.cuda.steps.verify import StepTime, draft_capacity
from engines.native.config import NativeConfig, Speculation
from engines.native.eagle.head import EagleHead
from engines.native.loop.core import EngineCore
from tools.benchmarks.gpu import Bench, load

CIRCLE = 40  # tokens of the text that repeats itself
_PREFERENCE = 0.1  # of the next one: the weights of the others are 0.02
_LOUDNESS = 30.0  # of these tokens, for the layers not to drown them
_MODES: tuple[Speculation, ...] = ("none", "ngram")
_PROMPT, _ANSWER = 128, 256
LONGEST = _PROMPT + _ANSWER + 64  # tokens of a sequence, and room
_CHUNK = 2048
_STEP_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Answers(NamedTuple):
    """What a run brought."""

    figures: dict[str, Any]
    token_ids: list[list[int]]


def options(
    max_num_seqs: int, speculation: Speculation, *, is_invariant: bool = False
) -> NativeConfig:
    return NativeConfig(
        Path(), "cuda", "bfloat16", max_num_seqs=max_num_seqs, max_num_batched_tokens=_CHUNK,
        overlap_steps=True, enable_prefix_caching=False, speculation=speculation,
        batch_invariant=is_invariant, draft_dir=Path() if speculation == "eagle3" else None,
    )  # fmt: skip


def backend_of(bench: Bench, config: NativeConfig, head: EagleHead | None = None) -> CudaBackend:
    longest = LONGEST
    blocks = 2 * (-(-longest // bench.block_size) + 1) * config.max_num_seqs + 1
    drafts = draft_capacity(config, bench.shape.config, 0 if head is None else head.num_values)
    return CudaBackend(
        bench.shape.config, [ModelPart(bench.shape.config, bench.weights, bench.cache(blocks))],
        Capacity(blocks, bench.block_size, longest, **drafts),
        config.max_num_seqs, _CHUNK, is_batch_invariant=config.batch_invariant, head=head,
    )  # fmt: skip


def core_of(bench: Bench, backend: CudaBackend, config: NativeConfig) -> EngineCore:
    model = bench.shape.config
    return assemble_core(config, backend, model.sliding_window, model.vocab_size)


def prompts_of(streams: int, *, is_repeating: bool) -> list[list[int]]:
    if is_repeating:
        return [[(i + j) % CIRCLE for j in range(_PROMPT)] for i in range(streams)]
    generator = torch.Generator().manual_seed(streams)
    return torch.randint(CIRCLE, 200000, (streams, _PROMPT), generator=generator).tolist()


def run(core: EngineCore, prompts: list[list[int]]) -> Answers:
    """All at once to the end, at temperature 1; tok/s by the median time per output token."""
    sequences = []
    for number, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=_ANSWER, temperature=1.0, seed=number)
        sequences.append(core.scheduler.add(EngineRequest(str(number), tuple(prompt), params)))
    arrivals: dict[object, list[tuple[float, int]]] = {sequence: [] for sequence in sequences}
    while core.has_work:
        outcomes = core.step()
        now = time.perf_counter()
        for sequence, event in outcomes:
            assert isinstance(event, TokenEvent), event
            arrivals[sequence].append((now, len(event.token_ids)))
    per_token = sorted(_per_token(times) for times in arrivals.values())
    median, stats = per_token[len(per_token) // 2], core.stats()
    figures = {
        "streams": len(prompts),
        "tokens_per_s": round(len(prompts) / median, 1),
        "ms_per_token": round(median * 1e3, 4),
        "steps": stats.num_steps,
        "draft_tokens": stats.draft_tokens,
        "accepted_draft_tokens": stats.accepted_draft_tokens,
    }
    return Answers(figures, [s.token_ids[s.num_prompt_tokens :] for s in sequences])


def _per_token(times: list[tuple[float, int]]) -> float:
    num = sum(num for _, num in times[1:])
    return (times[-1][0] - times[0][0]) / num


def same_tokens(a: list[list[int]], b: list[list[int]]) -> float:
    """The share of tokens before two answers part."""
    num = total = 0
    for one, other in zip(a, b, strict=True):
        pairs = [*zip(one, other, strict=True)]
        num += next((i for i, (x, y) in enumerate(pairs) if x != y), len(pairs))
        total += len(pairs)
    return round(num / total, 4)


def step_times(bench: Bench, rows: tuple[int, ...]) -> list[dict[str, float]]:
    """Milliseconds of a step beside what the engine takes them for, relative to one row."""
    config = bench.shape.config
    cost = StepTime(config.num_local_experts, config.num_experts_per_tok, max(rows))
    found, none = [], np.zeros(1)
    for num in rows:
        ms = bench.decode(num, 128, steps=64)["ms"]
        taken = cost(num, none)[0] / cost(1, none)[0]
        found.append({"rows": num, "ms": ms, "as_taken": round(float(taken), 2)})
        torch.cuda.empty_cache()
    return found


@contextmanager
def repeating(bench: Bench) -> Iterator[None]:
    """Make the token after each of a circle its next one; all layers run as ever."""
    embedding, head = bench.weights.embedding, bench.weights.head
    before = embedding[:CIRCLE].clone(), head[:CIRCLE].clone()
    after = torch.arange(CIRCLE, device=head.device).roll(-1)
    head[after] = before[0] * _PREFERENCE
    embedding[:CIRCLE] *= _LOUDNESS
    try:
        yield
    finally:
        embedding[:CIRCLE], head[:CIRCLE] = before


def measure(bench: Bench, streams: list[int]) -> list[dict[str, Any]]:
    """Every number of streams in every mode and text."""
    found: list[dict[str, Any]] = []
    for is_invariant in (False, True):
        backend = backend_of(bench, options(max(streams), "ngram", is_invariant=is_invariant))
        modes = partial(in_both_modes, bench, backend, streams, is_invariant=is_invariant)
        found += modes("plain")
        with repeating(bench):
            found += modes("repeating")
        del backend
        torch.cuda.empty_cache()
    return found


def in_both_modes(
    bench: Bench, backend: CudaBackend, streams: list[int], text: str, *, is_invariant: bool
) -> list[dict[str, Any]]:
    """Without guesses and with them."""
    found = []
    for num in streams:
        prompts, answers = prompts_of(num, is_repeating=text == "repeating"), []
        for speculation in _MODES:
            config = options(max(streams), speculation, is_invariant=is_invariant)
            run(core_of(bench, backend, config), prompts[:1])
            result = run(core_of(bench, backend, config), prompts)
            answers.append(result.token_ids)
            names = {"batch_invariant": is_invariant, "text": text, "speculation": speculation}
            found.append({**names, **result.figures, "same": same_tokens(answers[0], answers[-1])})
            print(json.dumps(found[-1]), flush=True)
    return found


def table(found: list[dict[str, Any]]) -> str:
    """tok/s by streams: a line for each mode."""
    streams = sorted({each["streams"] for each in found})
    modes: dict[tuple[object, ...], dict[int, float]] = {}
    for each in found:
        mode = each["text"], each["speculation"], each["batch_invariant"]
        modes.setdefault(mode, {})[each["streams"]] = each["tokens_per_s"]
    lines = [f"{'text':<10} {'guesses':<8} {'invariant':<9}" + "".join(f"{n:>9}" for n in streams)]
    for (text, speculation, is_invariant), by in modes.items():
        cells = "".join(f"{by.get(n, 0.0):9.0f}" for n in streams)
        lines.append(f"{text:<10} {speculation:<8} {is_invariant!s:<9}{cells}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["20b", "120b"], default="20b")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 32, 128])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    bench = load(arguments.model, num_positions=9000)
    line: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "model": arguments.model,
        "prompt": _PROMPT,
        "answer": _ANSWER,
    }
    line["engine"] = measure(bench, arguments.streams)
    print(table(line["engine"]), flush=True)
    line["steps"] = step_times(bench, _STEP_ROWS)
    for each in line["steps"]:
        print(f"{each['rows']:4} rows {each['ms']:8.3f} ms, taken for {each['as_taken']:.2f} steps")
    print(json.dumps(line))
    if arguments.json:
        arguments.json.write_text(json.dumps(line, indent=1) + "\n")


if __name__ == "__main__":
    main()
