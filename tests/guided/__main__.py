"""`make guided`: does every guided answer that ends by itself hold to its schema?

A random checkpoint with the whole vocabulary writes answers to random schemas; what it says
is noise, so that only the grammar can make it valid. Also: what a mask costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import jsonschema
import numpy as np

from engines.base import Engine, EngineRequest, SamplingParams, TokenEvent
from engines.errors import InvalidGrammar
from engines.grammar.tree import Grammar
from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from engines.native.grammar.compiler import GrammarCompiler
from service.conversation import DeltaKind
from service.errors import RequestError
from service.harmony.parse import Parser
from service.harmony.vocabulary import CALL, END, RETURN, encode_text, write_vocabulary
from tests.guided.schemas import Schema, guided_by, random_schema
from tools.benchmarks.checkpoint import VOCAB_SIZE, write_random

# A random model would hardly ever end a text, a string or a list by itself.
ENDS = {END: 14.0, RETURN: 16.0, CALL: 16.0} | {
    encode_text(text)[0]: 11.0 for text in ('"', "}", "]", '"}', '"]', '",', "}}", "]}", ":", " ")
}


AT_ONCE = 8  # schemas


@dataclass
class Tally:
    """What became of the schemas."""

    num_valid: int = 0
    num_cut: int = 0  # the limit was reached first
    invalid: list[tuple[int, str]] = field(default_factory=list)  # schema number, answer
    refused: list[tuple[int, str]] = field(default_factory=list)  # schema number, reason


def main() -> None:
    """Run and report; fails if an answer is invalid or a schema is refused."""
    parser = argparse.ArgumentParser(prog="python -m tests.guided", description=__doc__)
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--answers", type=int, default=3, help="answers to each schema")
    arguments = parser.parse_args()
    with TemporaryDirectory() as scratch:
        checkpoint = write_random(Path(scratch) / "m", hidden=32, num_layers=2, num_experts=4)
        vocabulary = write_vocabulary(Path(scratch))
        engine = NativeEngine(NativeConfig(checkpoint, vocabulary_path=vocabulary))
        tally = asyncio.run(run(engine, range(arguments.schemas), arguments.answers))
        cost = asyncio.run(costs(vocabulary, range(min(arguments.schemas, 40))))
    for number, answer in tally.invalid:
        print(
            f"schema {number} was broken by {answer[:300]!r}: {json.dumps(random_schema(number))}"
        )
    for number, reason in tally.refused:
        print(f"schema {number} was refused: {reason}")
    counts = {
        "schemas": arguments.schemas,
        "valid": tally.num_valid,
        "invalid": len(tally.invalid),
        "cut": tally.num_cut,
        "refused": len(tally.refused),
    }
    print(json.dumps(counts | cost))
    raise SystemExit(bool(tally.invalid or tally.refused))


async def run(engine: Engine, numbers: range, num_answers: int) -> Tally:
    """Answer to each schema several times; the engine is started and stopped here."""
    tally = Tally()
    await engine.start()
    try:
        for batch in (numbers[i : i + AT_ONCE] for i in range(0, len(numbers), AT_ONCE)):
            await asyncio.gather(*(_schema(engine, n, num_answers, tally) for n in batch))
    finally:
        await engine.stop()
    return tally


async def _schema(engine: Engine, number: int, num_answers: int, tally: Tally) -> None:
    schema = random_schema(number)
    try:
        grammar = guided_by(schema)
        texts = await asyncio.gather(
            *(answer(engine, grammar, seed=number * 100 + i) for i in range(num_answers))
        )
    except (RequestError, InvalidGrammar) as error:
        tally.refused.append((number, f"{error} {json.dumps(schema)}"))
        return
    for text in texts:
        if text is None:
            tally.num_cut += 1
        elif is_valid(text, schema):
            tally.num_valid += 1
        else:
            tally.invalid.append((number, text))


async def answer(
    engine: Engine, grammar: Grammar | None, *, seed: int, max_tokens: int = 500
) -> str | None:
    """The content of one answer; None if it was cut."""
    request = EngineRequest(
        request_id=f"{seed}",
        prompt_token_ids=(200006, 173781, 1000 + seed % 9000),
        sampling=SamplingParams(max_tokens, logit_bias=ENDS, seed=seed),
        stop_token_ids=(RETURN, CALL),
        grammar=grammar,
    )
    events: list[TokenEvent] = [event async for event in engine.generate(request)]
    if events[-1].finish_reason != "stop":
        return None
    parser = Parser(frozenset())
    deltas = parser.feed([id for event in events for id in event.token_ids]) + parser.finish()
    return "".join(delta.text for delta in deltas if delta.kind is DeltaKind.CONTENT)


async def costs(vocabulary_path: Path, numbers: range) -> dict[str, float]:
    """Seconds to compile a schema, and microseconds that a row's mask and step take."""
    compiler = GrammarCompiler(vocabulary_path, VOCAB_SIZE, 120, idle=asyncio.Event())
    await compiler.start()
    mask = np.empty(-(-VOCAB_SIZE // 32), np.int32)
    generator = np.random.default_rng(0)
    compile_s: list[float] = []
    row_us: list[float] = []
    for number in (0, *numbers):  # the first loads the library
        grammar = guided_by(random_schema(number))
        request = EngineRequest("r", (1,), SamplingParams(1), (RETURN,), grammar)
        start = time.perf_counter()
        guide = await compiler.guide(request)
        compile_s.append(time.perf_counter() - start)
        for _ in range(60):
            scores = generator.standard_normal(VOCAB_SIZE, np.float32)
            start = time.thread_time()
            guide.fill(mask)
            spent = time.thread_time() - start
            allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB_SIZE]
            token_id = int(np.where(allowed, scores, -np.inf).argmax())
            if token_id == RETURN:
                break
            start = time.thread_time()
            guide.accept(token_id)
            row_us.append(1e6 * (spent + time.thread_time() - start))
    await compiler.stop()
    return {
        "compile_median_s": round(median(compile_s[2:]), 3),
        "compile_max_s": round(max(compile_s[2:]), 3),
        "row_median_us": round(median(row_us)),
        "row_p99_us": round(float(np.percentile(row_us, 99))),
        "row_max_us": round(max(row_us)),
    }


def is_valid(text: str, schema: Schema) -> bool:
    """Whether the text is JSON of this schema."""
    try:
        jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


if __name__ == "__main__":
    main()
