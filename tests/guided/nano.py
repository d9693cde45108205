"""`make guided`, second part: structured output on nano, by the real SDK over HTTP.

Every random schema is asked for as a response format and as a strict tool that must be called.
nano does not know what such a document is for; that every answer which ends by itself is valid
is the grammar's doing. Sampled at the client's default temperature.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from openai import AsyncOpenAI, BadRequestError
from openai.types.chat import ChatCompletion

from tests.guided.__main__ import is_valid
from tests.guided.schemas import Schema, random_schema
from tools.benchmarks.ending import end_as_by_ctrl_c
from tools.benchmarks.startup import serving

AT_ONCE = 8
MAX_TOKENS = 600
QUESTION = "Make up an example, with Paris in it."


def main() -> None:
    """Run and report, also when ended early; fails if an answer is invalid or one is refused."""
    parser = argparse.ArgumentParser(prog="python -m tests.guided.nano", description=__doc__)
    parser.add_argument("--schemas", type=int, default=200)
    num_schemas = parser.parse_args().schemas
    end_as_by_ctrl_c()
    counts: Counter[str] = Counter()
    try:
        with TemporaryDirectory() as cache, serving(Path(cache)) as url:
            asyncio.run(run(url, range(num_schemas), counts))
    finally:
        print(json.dumps({"schemas": num_schemas, **counts}))
    raise SystemExit(any("invalid" in name or "refused" in name for name in counts))


async def run(url: str, numbers: range, counts: Counter[str]) -> None:
    """Ask for each schema both ways; count what became of it."""
    places = asyncio.Semaphore(AT_ONCE)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", timeout=300) as client:

        async def one(number: int, way: str) -> None:
            async with places:
                counts[f"{way} {await ask(client, number, way)}"] += 1

        await asyncio.gather(*(one(n, way) for n in numbers for way in ("format", "tool")))


async def ask(client: AsyncOpenAI, number: int, way: str) -> str:
    """Return valid, invalid, cut or refused; prints what is wrong."""
    schema = random_schema(number)
    try:
        answer = await client.chat.completions.create(
            model="nano",
            messages=[{"role": "user", "content": QUESTION}],
            max_completion_tokens=MAX_TOKENS,
            seed=number,
            **_demand(schema, way),
        )
    except BadRequestError as error:
        print(f"schema {number} was refused as {way}: {error}: {json.dumps(schema)}")
        return "refused"
    if answer.choices[0].finish_reason == "length":
        return "cut"
    text = _document(answer, way)
    if is_valid(text, schema):
        return "valid"
    print(f"schema {number} was broken as {way} by {text[:300]!r}: {json.dumps(schema)}")
    return "invalid"


def _demand(schema: Schema, way: str) -> dict[str, Any]:
    named = {"name": "example", "strict": True}
    if way == "format":
        wanted = {"type": "json_schema", "json_schema": {**named, "schema": schema}}
        return {"response_format": wanted}
    tool = {"type": "function", "function": {**named, "parameters": schema}}
    return {"tools": [tool], "tool_choice": "required"}


def _document(answer: ChatCompletion, way: str) -> str:
    message = answer.choices[0].message
    if way == "format":
        return message.content or ""
    calls = message.tool_calls or []
    return calls[0].function.arguments if calls and calls[0].type == "function" else ""


if __name__ == "__main__":
    main()
