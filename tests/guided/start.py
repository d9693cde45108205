"""`make guided`, third part: how much later a guided answer's first token comes.

Each schema is asked for once, so that nothing is found compiled, right behind an answer to the same
prompt without one. The difference is what reading, sending, trying and compiling the schema take,
and the first mask.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from engines.base import Engine, EngineRequest, SamplingParams
from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from service.harmony.vocabulary import RETURN, write_vocabulary
from tests.guided.schemas import Schema, guided_by, random_schema
from tools.benchmarks.checkpoint import write_random

LIMIT_MS = 50.0  # of ordinary models


def model(number: int) -> Schema:
    """As Pydantic writes a model with `max_length` 50, 100, 255 and 500."""
    lengths = {"name": 50, "title": 100, "summary": 255, f"note_{number}": 500}
    properties = {
        name: {"maxLength": length, "title": name.title(), "type": "string"}
        for name, length in lengths.items()
    }
    return {"properties": properties, "required": list(lengths), "title": "M", "type": "object"}


def wide(number: int) -> Schema:
    """A thousand optional properties."""
    properties = {f"p{i}_{number}": {"type": "string", "maxLength": 255} for i in range(1000)}
    return {"type": "object", "properties": properties}


def wide_required(number: int) -> Schema:
    """A thousand that must be there."""
    schema = wide(number)
    return {**schema, "required": list(schema["properties"])}


def tree(number: int) -> Schema:
    """A schema that refers to itself."""
    kids = {"type": "array", "items": {"$ref": "#/$defs/Node"}}
    node = {
        "type": "object",
        "properties": {f"value_{number}": {"type": "string", "maxLength": 100}, "kids": kids},
        "required": ["kids"],
    }
    return {"$ref": "#/$defs/Node", "$defs": {"Node": node}}


def long_random(number: int) -> Schema:
    """A random one, its longest text a thousand characters."""
    body = random_schema(number)
    extra = {"type": "string", "minLength": number % 10, "maxLength": 1000 - number % 200}
    properties = {"random": {k: v for k, v in body.items() if k != "$defs"}, "extra": extra}
    return {"type": "object", "properties": properties, "$defs": body.get("$defs", {})}


KINDS: dict[str, tuple[Callable[[int], Schema], int]] = {
    "lengths 50/100/255/500": (model, 30),
    "recursion": (tree, 30),
    "200 random, to 1,000": (long_random, 200),
    "1,000 required": (wide_required, 10),
    "1,000 optional": (wide, 10),
}


def main() -> None:
    """Run and report; fails when an ordinary model's median is above the limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.guided.start", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the schemas of each kind")
    share: float = parser.parse_args().share
    with TemporaryDirectory() as scratch:
        checkpoint = write_random(Path(scratch) / "m", hidden=32, num_layers=2, num_experts=4)
        vocabulary = write_vocabulary(Path(scratch))
        engine = NativeEngine(NativeConfig(checkpoint, vocabulary_path=vocabulary))
        delays = asyncio.run(run(engine, share))
    print(f"{'first token later by':24} {'median':>8} {'p95':>8} {'most':>8}  ms")
    for name, row in delays.items():
        print(f"{name:24} {row['median']:8.1f} {row['p95']:8.1f} {row['most']:8.1f}")
    print(json.dumps({"first_token_later_ms": delays}))
    raise SystemExit(delays["lengths 50/100/255/500"]["median"] > LIMIT_MS)


async def run(engine: Engine, share: float) -> dict[str, dict[str, float]]:
    """Measure each kind; the engine is started and stopped here."""
    await engine.start()
    try:
        await first_token_s(engine, 0, None)
        await first_token_s(engine, 0, {"type": "null"})  # waits for the vocabulary's trie
        return {
            name: await _delays(engine, make, max(2, round(number * share)))
            for name, (make, number) in KINDS.items()
        }
    finally:
        await engine.stop()


async def _delays(engine: Engine, make: Callable[[int], Schema], number: int) -> dict[str, float]:
    delays_ms = []
    for i in range(number):
        plain_s = await first_token_s(engine, i, None)
        delays_ms.append(1000 * (await first_token_s(engine, i, make(i)) - plain_s))
    delays_ms.sort()
    return {
        "median": round(median(delays_ms), 1),
        "p95": round(delays_ms[int(0.95 * (len(delays_ms) - 1))], 1),
        "most": round(delays_ms[-1], 1),
    }


async def first_token_s(engine: Engine, number: int, schema: Any) -> float:
    """From the schema as it was sent to the first token."""
    start_s = time.perf_counter()
    grammar = guided_by(schema) if schema else None
    request = EngineRequest(
        request_id=f"r{number}",
        prompt_token_ids=(200006, 173781, 1000 + number),
        sampling=SamplingParams(1, seed=number),
        stop_token_ids=(RETURN,),
        grammar=grammar,
    )
    async for _ in engine.generate(request):
        pass
    return time.perf_counter() - start_s


if __name__ == "__main__":
    main()
