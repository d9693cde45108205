"""What an EAGLE3 head costs that is never right, and gains that always is, on this GPU.

    python -m tools.benchmarks.gpu_eagle [--model 20b|120b] [--streams N ...] [--json FILE]

Random MXFP4 weights of the true shape and the two texts of gpu_speculation.py. A random
head guesses at the random text; a head made for it at the one that repeats itself. Both have the
shape of a published head but for fewer draft tokens. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engines.native.backends.cuda.steps.buffers import SlotTensors
from engines.native.backends.cuda.steps.eagle import DeviceHead
from engines.native.config import Speculation
from engines.native.eagle.head import EagleHead
from tools.benchmarks.gpu import Bench, load
from tools.benchmarks.gpu_speculation import (
    CIRCLE,
    LONGEST,
    backend_of,
    core_of,
    options,
    prompts_of,
    repeating,
    run,
    same_tokens,
    table,
)
from tools.benchmarks.random_heads import HeadShape, knowing_head, random_head

_POSITIONS = LONGEST + 16  # and the guesses behind the last token


def compared(
    bench: Bench, streams: list[int], text: str, head: EagleHead
) -> Iterator[dict[str, Any]]:
    """Each number of streams without a head, with one that is not asked, and with its guesses."""
    most = max(streams)
    answers: dict[int, list[list[int]]] = {}
    modes: list[tuple[str, EagleHead | None, Speculation]] = [
        ("none", None, "none"), ("unasked", head, "none"), ("eagle3", head, "eagle3")
    ]  # fmt: skip
    for name, of, speculation in modes:
        if text == "repeating" and name == "unasked":
            continue  # costs what it costs at the other text
        backend = backend_of(bench, options(most, "ngram"), of)
        for num in streams:
            prompts = prompts_of(num, is_repeating=text == "repeating")
            config = options(most, speculation)
            run(core_of(bench, backend, config), prompts[:1])
            result = run(core_of(bench, backend, config), prompts)
            expected = answers.setdefault(num, result.token_ids)
            names = {"batch_invariant": False, "text": text, "speculation": name}
            yield {**names, **result.figures, "same": same_tokens(expected, result.token_ids)}
        del backend
        torch.cuda.empty_cache()


def guess_ms(bench: Bench, head: EagleHead, rows: list[int]) -> list[dict[str, float]]:
    """Milliseconds of one guess of so many sequences at a context of 300, of a chain of seven."""
    most, size = max(rows), bench.block_size
    slots = SlotTensors.allocate(most + 1, LONGEST // size + 1, bench.weights.embedding.device)
    device = DeviceHead(head, 8, size, slots, rows=1, tokens=1)
    device.ends.fill_(300)

    def upload(values: list[int]) -> Tensor:
        return torch.tensor(values, device=slots.token_ids.device)

    found = []
    for num in rows:
        device.propose([*range(num)], [7] * num, upload)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(5):
            device.propose([*range(num)], [7] * num, upload)
        end.record()
        end.synchronize()
        found.append({"sequences": num, "ms": round(start.elapsed_time(end) / 35, 4)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["20b", "120b"], default="20b")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--draft-vocabulary", type=int, default=32_768)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    bench = load(arguments.model, num_positions=9000)
    model, embedding = bench.shape.config, bench.weights.embedding
    shape = HeadShape(arguments.draft_vocabulary)
    line: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "model": arguments.model,
        "draft_vocabulary": arguments.draft_vocabulary,
        "engine": [],
    }

    def keep(figures: dict[str, Any]) -> None:
        line["engine"].append(figures)
        print(json.dumps(figures), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(line, indent=1) + "\n")

    with repeating(bench):
        following = torch.arange(CIRCLE, device=embedding.device).roll(-1)
        head = knowing_head(model, shape, embedding, following, _POSITIONS)
        for figures in compared(bench, arguments.streams, "repeating", head):
            keep(figures)
    head = random_head(model, shape, embedding, _POSITIONS)
    for figures in compared(bench, arguments.streams, "plain", head):
        keep(figures)
    line["guess"] = guess_ms(bench, head, arguments.streams)
    print(table(line["engine"]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(line, indent=1) + "\n")
    print(json.dumps(line))


if __name__ == "__main__":
    main()
