"""A scripted engine in a process of its own that notes when it emitted each token.

`python -m tools.benchmarks.scripted ADDRESS` serves on the ZeroMQ address as an engine process
does. Lines on stdin: `start {options}` makes the engine, `stamps` writes on stdout, as one line of
JSON, the time of each token by request id, and forgets them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import overload

from engines.base import EngineRequest
from engines.process.server import EngineServer
from engines.process.wire import HEARTBEAT_S
from service.harmony import vocabulary
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

THOUGHT = "The user wants to know it, so I look it up with the tool that I have been given. "
ARGUMENT = "The quick brown fox jumps over the lazy dog, and then it goes home to sleep. "
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    },
}


def answer_ids(num_repeats: int) -> list[int]:
    """Reasoning, then a call whose arguments are as long."""
    encode = vocabulary.encode_text
    return [
        *(vocabulary.CHANNEL, *encode("analysis"), vocabulary.MESSAGE),
        *(*encode(THOUGHT * num_repeats), vocabulary.END),
        *(vocabulary.START, *encode("assistant")),
        *(vocabulary.CHANNEL, *encode("commentary to=functions.look_up "), vocabulary.CONSTRAIN),
        *(*encode("json"), vocabulary.MESSAGE),
        *(*encode('{"text": "' + ARGUMENT * num_repeats + '"}'), vocabulary.CALL),
    ]


class Stamped(Sequence[int]):
    """A script that notes when each of its ids is taken."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.times_ns: list[int] = []
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        self.times_ns.append(time.monotonic_ns())
        return self._ids[index]


class Stamps:
    """The scripts of all requests so far."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids
        self._scripts: dict[str, Stamped] = {}

    def script(self, request: EngineRequest) -> Stamped:
        script = self._scripts[request.request_id] = Stamped(self._ids)
        return script

    def take(self) -> dict[str, list[int]]:
        scripts, self._scripts = self._scripts, {}
        return {id: script.times_ns for id, script in scripts.items()}


async def _serve(address: str) -> None:
    server = EngineServer(address)
    loop = asyncio.get_running_loop()
    options = json.loads(await loop.run_in_executor(None, sys.stdin.readline))
    stamps = Stamps(answer_ids(options.pop("num_repeats")))
    engine = FakeEngine(FakeOptions(script=(0,), **options), stamps.script)
    await engine.start()
    server.serve(engine)
    beating = asyncio.create_task(_beat(server))
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(stamps.take()), flush=True)
    beating.cancel()
    await engine.stop()
    await server.close()


async def _beat(server: EngineServer) -> None:
    while True:
        server.beat()
        await asyncio.sleep(HEARTBEAT_S)


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(sys.argv[1]))
