"""The CUDA backend on this machine's GPU: decode steps and prefill beside their floors.

    python -m tools.benchmarks.gpu [--model 20b|120b] [--prompts 32x2048] [--json FILE]
    python -m tools.benchmarks.gpu --rows --contexts --prefill --streams --offline 512x1024x1024x768

Random MXFP4 weights of the true shape, made on the device. The floor of a step is the exact bytes
it must read (weights of the experts it really hits, bf16 rest, K/V) over the read bandwidth
measured on this very card. Prints a line for each case and one JSON line of all.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.choices.variants import (
    PARTS,
    Choices,
    PrefillChoices,
    StreamLaunch,
)
from engines.native.backends.cuda.memory.transfer import Transfer
from engines.native.backends.cuda.offline.published import gpt_oss
from engines.native.backends.cuda.sampling.fields import SlotFields
from engines.native.backends.cuda.sampling.sampler import Sampler
from engines.native.backends.cuda.steps.buffers import Rows, Scratch, SlotTensors
from engines.native.backends.cuda.steps.decode import DecodeStep
from engines.native.backends.cuda.steps.prefill import Prefill, PrefillBuffers
from engines.native.backends.cuda.steps.shape import Shape
from engines.native.backends.cuda.steps.token_runs import TokenRun
from engines.native.backends.cuda.weights.model import ModelWeights
from tools.benchmarks.gpu_engine import Load
from tools.benchmarks.gpu_engine import serve as engine_of
from tools.benchmarks.random_model import random_weights

_DEVICE = torch.device("cuda")
_STEPS = 512


@dataclass(slots=True)
class Bench:
    """One model on the device, with a cache that any of the cases fits into."""

    shape: Shape
    weights: ModelWeights
    block_size: int
    bandwidth: float  # bytes a second
    choices: CardChoices = field(default_factory=lambda: CardChoices.of(_DEVICE))

    def decode(
        self, rows: int, context: int, steps: int = _STEPS, choices: Choices | None = None
    ) -> dict[str, Any]:
        """Median milliseconds of a step while the context grows from `context` on."""
        case = self.step(rows, context + steps, choices)
        step, slots, sampler, scratch = case
        inputs = sampler.rows
        graph = capture(step.run, lambda: sampler.run(rows))
        reset(slots, inputs, context)
        for _ in range(5):
            graph.replay()
        reset(slots, inputs, context)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        events[0].record()
        for event in events[1:]:
            graph.replay()
            event.record()
        torch.cuda.synchronize()
        times = sorted(a.elapsed_time(b) for a, b in pairwise(events))
        hit = num_hit(
            scratch, choices or self.choices.decode(rows, self.shape.config), rows, self.shape
        )
        floor = self.floor_ms(rows, context + steps // 2, hit)
        median = times[len(times) // 2]
        mean = events[0].elapsed_time(events[-1]) / steps
        return {
            "rows": rows,
            "context": context,
            "ms": round(median, 4),
            "mean_ms": round(mean, 4),
            "tokens_per_s": round(rows / median * 1e3, 1),
            "experts_last_layer": hit,
            "floor_ms": round(floor, 4),
            "share_of_floor": round(floor / median, 3),
            "is_finite": bool(torch.isfinite(sampler.logits[:rows]).all()),
        }

    def parts(self, rows: int, context: int = 256) -> dict[str, Any]:
        """Median microseconds a layer of each part of a step alone, and of the head once."""
        step, slots, sampler, _ = self.step(rows, context + 64)
        whole = capture(step.run, lambda: sampler.run(rows))
        found: dict[str, Any] = {"rows": rows, "context": context}
        for part in sorted(PARTS - {"norm"}):  # norms go with the products that they are for
            reset(slots, sampler.rows, context)
            whole.replay()  # what the part reads
            step.skipped = PARTS - {part}
            num = 1 if part == "head" else self.shape.config.num_hidden_layers
            found[part] = round(_median_ms(capture(step.run), 15) * 1e3 / num, 2)
            step.skipped = frozenset()
        return found

    def prefill(
        self, tokens: int, prompts: int = 1, choices: PrefillChoices | None = None,
        skipped: frozenset[str] = frozenset(),
    ) -> dict[str, Any]:  # fmt: skip
        """Median milliseconds of `tokens` of so many equal prompts, as one captured chunk."""
        each = tokens // prompts
        blocks = -(-each // self.block_size) + 1
        slots = SlotTensors.allocate(prompts, blocks, _DEVICE)
        table = torch.randperm(prompts * blocks, device=_DEVICE).view(prompts, blocks) + 1
        slots.full_tables.copy_(table)
        slots.window_tables.copy_(table)
        long_attention = self.choices.long_attention(self.shape.config)
        least_depth = math.inf if long_attention is None else long_attention.least_depth
        buffers = PrefillBuffers(self.shape, tokens, prompts, _DEVICE, least_depth)
        ids = torch.randint(0, 200000, (prompts, each)).tolist()
        host = buffers.packed.cpu()
        buffers.pack([TokenRun(slot, 0, prompt) for slot, prompt in enumerate(ids)], host)
        buffers.packed.copy_(host)
        prefill = Prefill(
            self.shape, self.weights, self.cache(prompts * blocks + 1), self.block_size, tokens,
            slots, buffers, choices or self.choices.prefill(tokens, self.shape.config),
        )  # fmt: skip
        prefill.skipped = skipped
        graph = capture(prefill.run)
        median = _median_ms(graph, 10)
        return {
            "tokens": tokens,
            "prompts": prompts,
            "ms": round(median, 3),
            "tokens_per_s": round(tokens / median * 1e3),
            "is_finite": bool(torch.isfinite(buffers.x).all()),
        }

    def cache(self, num_blocks: int) -> Tensor:
        config = self.shape.config
        kinds = config.layer_types
        layers = max(kinds.count("full_attention"), kinds.count("sliding_attention"))
        size = (layers, num_blocks, self.block_size * 2 * config.kv_size)
        return torch.zeros(size, dtype=torch.bfloat16, device=_DEVICE)

    def step(
        self, rows: int, longest: int, choices: Choices | None = None
    ) -> tuple[DecodeStep, SlotTensors, Sampler, Scratch]:
        config, device = self.shape.config, _DEVICE
        blocks = -(-longest // self.block_size) + 1
        cache = self.cache(rows * blocks + 1)
        slots = SlotTensors.allocate(rows, blocks, device)
        inputs = Rows(rows, device)
        inputs.slots.copy_(torch.arange(rows))
        table = torch.randperm(rows * blocks, device=device).view(rows, blocks) + 1
        slots.full_tables.copy_(table)
        slots.window_tables.copy_(table)
        inputs.num_rows.fill_(rows)
        scratch = Scratch(self.shape, rows, device)
        sampler = Sampler(inputs, slots, SlotFields(rows, Transfer(device)), config.vocab_size)
        step = DecodeStep(
            self.shape, self.weights, cache, self.block_size, rows,
            choices or self.choices.decode(rows, config), slots, inputs, scratch, sampler.logits,
        )  # fmt: skip
        return step, slots, sampler, scratch

    def expected_experts(self, rows: int) -> float:
        """Experts that some of `rows` rows hit in a layer, were the routes uniform."""
        num = self.shape.num_experts
        return float(num * (1 - (1 - self.shape.top_k / num) ** rows))

    def floor_ms(self, rows: int, context: int, experts: float) -> float:
        """Milliseconds that reading the step's bytes takes at the measured bandwidth."""
        return sum(self.floors_us(rows, context, experts).values()) / 1e3

    def floors_us(self, rows: int, context: int, experts: float | None = None) -> dict[str, float]:
        """Microseconds of each part of a step, by the bytes it must read; parts as step_parts
        names them. `experts` that a layer hits: None, as uniform routing does."""
        c, layers = self.shape.config, self.shape.config.num_hidden_layers
        hit = self.expected_experts(rows) if experts is None else experts
        expert = 3 * c.hidden_size * c.intermediate_size * 17 / 32
        expert += 2 * (c.hidden_size + 2 * c.intermediate_size)
        windows = [self.shape.window(layer) for layer in range(layers)]
        seen = sum(min(context, window) if window else context for window in windows)
        read = {
            "experts": layers * hit * expert,
            "attention": rows * seen * 4 * c.kv_size,
            "dense products": layers * 2 * self.shape.hidden * (self.shape.qkv_size + c.q_size),
            "head": 2 * c.vocab_size * c.hidden_size,
            "router": layers * 2 * self.shape.hidden * c.num_local_experts,
        }
        return {part: num_bytes / self.bandwidth * 1e6 for part, num_bytes in read.items()}


def capture(*launches: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Compile by running once, then record."""

    def run() -> None:
        for launch in launches:
            launch()

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def _median_ms(graph: torch.cuda.CUDAGraph, repeats: int) -> float:
    times: list[float] = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[repeats // 2]


def reset(slots: SlotTensors, inputs: Rows, context: int) -> None:
    """Rows with tokens, seeds and routes of their own, sampled at temperature 1."""
    generator = torch.Generator(_DEVICE).manual_seed(1)
    slots.token_ids.random_(0, 200000, generator=generator)
    slots.seeds.copy_(torch.arange(len(slots.seeds)) + 1)
    slots.temperatures.fill_(1.0)
    inputs.positions.fill_(context)
    inputs.generated.fill_(0)


def num_hit(scratch: Scratch, choices: Choices, rows: int, shape: Shape) -> int:
    """Experts that the last layer's step has computed."""
    if rows == 1:
        return shape.top_k
    is_streamed = isinstance(choices.gate_up, StreamLaunch)
    return int((scratch.active >= 0 if is_streamed else scratch.counts > 0).sum())


def read_bandwidth() -> float:
    """Bytes a second of a reduction over 8 GB: the best of ten."""
    data = torch.empty(2**31, dtype=torch.int32, device=_DEVICE).random_()
    best = float("inf")
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        data.view(torch.float32).amax()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end))
    return data.numel() * 4 / best * 1e3


def load(model: str, num_positions: int, block_size: int = 64) -> Bench:
    """Random weights of one model, and the card's bandwidth."""
    bandwidth = read_bandwidth()
    torch.cuda.empty_cache()
    config = gpt_oss(model)
    weights = random_weights(config, num_positions, _DEVICE)
    return Bench(Shape(config), weights, block_size, bandwidth)


def serve(bench: Bench, load: Load) -> dict[str, Any]:
    """The load through the engine, with the floor of a decode step halfway through the answers."""
    config = bench.shape.config
    cache = bench.cache(load.num_blocks(bench.block_size, config.sliding_window))
    found = engine_of(config, bench.weights, cache, bench.block_size, load)
    context = load.prompt + load.answer // 2
    experts = bench.expected_experts(load.streams)
    if load.answer > 1:
        floor = bench.floor_ms(load.streams, context, experts)
        found["floor_ms_uniform_routing"] = round(floor, 4)
    return found


def pairs(text: str) -> list[int]:
    """Numbers of an argument such as 32x2048."""
    return [int(number) for number in text.split("x")]


def _chunk(streams: int) -> int:
    """Of the profiles that such a load is served by: tuned for latency, or for throughput."""
    return 2048 if streams <= 8 else 8192


def loads(arguments: argparse.Namespace) -> list[Load]:
    """What the engine is to serve, in the order of the arguments."""
    found = [Load(n, 128, 512, n, _chunk(n)) for n in arguments.streams]
    for streams, prompt in arguments.prompts:
        found.append(Load(streams, prompt, 1, streams, min(arguments.chunk, streams * prompt)))
    for streams, prompt, answer, requests in arguments.offline:
        found.append(Load(streams, prompt, answer, requests, arguments.chunk))
    return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["20b", "120b"], default="20b")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32, 128])
    parser.add_argument("--contexts", type=int, nargs="*", default=[8000], help="of one row")
    parser.add_argument("--parts", type=int, nargs="*", default=[], help="rows of a step")
    parser.add_argument("--prefill", type=int, nargs="*", default=[128, 512, 2048])
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 32, 128])
    parser.add_argument(
        "--prompts", type=pairs, nargs="*", default=[[32, 2048]], help="prompts x tokens"
    )
    parser.add_argument(
        "--offline", type=pairs, nargs="*", default=[], help="streams x prompt x answer x requests"
    )
    parser.add_argument("--chunk", type=int, default=8192, help="of --prompts and --offline")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    longest = max([600, *arguments.contexts]) + 1000
    bench = load(arguments.model, num_positions=max(longest, 9000))
    line: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "model": arguments.model,
        "bandwidth_tb_per_s": round(bench.bandwidth / 1e12, 3),
        "decode": [],
        "parts": [],
        "prefill": [],
        "engine": [],
    }
    print(f"{line['gpu']}, reads {bench.bandwidth / 1e12:.2f} TB/s")

    def found(kind: str, result: dict[str, Any]) -> None:
        """Print and keep it at once: a run that is cut loses nothing."""
        line[kind].append(result)
        print(kind, json.dumps(result), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(line, indent=1) + "\n")
        torch.cuda.empty_cache()

    for rows, context in [
        *((rows, 128) for rows in arguments.rows),
        *((1, context) for context in arguments.contexts),
    ]:
        found("decode", bench.decode(rows, context))
    for rows in arguments.parts:
        found("parts", bench.parts(rows))
    for tokens in arguments.prefill:
        found("prefill", bench.prefill(tokens))
    for case in loads(arguments):
        found("engine", serve(bench, case))
    print(json.dumps(line))


if __name__ == "__main__":
    main()
