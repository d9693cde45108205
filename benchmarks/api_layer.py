"""The API layer alone: HTTP, Harmony parsing and events, over a scripted engine in process.

The server has one core to itself and the client the other, so the figure is tokens per
second and core of everything above the engine. The engine gives one token a step and waits
for nothing; each answer is reasoning, then content, and is counted by its own usage chunk.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from engines.fake import FakeEngine
from engines.fake_sequence import FakeOptions
from service.harmony import vocabulary
from service.lifecycle import Lifecycle
from service.runtime import Runtime, ServedModel
from service.server import ApiServer
from service.telemetry.metrics import Metrics

MODEL = "scripted"
TEXT = "The quick brown fox jumps over the lazy dog, and then it goes home to sleep. " * 12
SERVER_CORE, CLIENT_CORE = 0, 1


def tokens_per_second(num_streams: int) -> float:
    """Stream as many answers at once; the tokens of all over the time from first to last."""
    with _server() as port:
        os.sched_setaffinity(0, {CLIENT_CORE})
        try:
            asyncio.run(_streams(port, min(num_streams, 8)))  # warm up
            started = time.perf_counter()
            num_tokens = asyncio.run(_streams(port, num_streams))
            return num_tokens / (time.perf_counter() - started)
        finally:
            os.sched_setaffinity(0, {SERVER_CORE, CLIENT_CORE})


async def _streams(port: int, num_streams: int) -> int:
    return sum(await asyncio.gather(*(_stream(port) for _ in range(num_streams))))


async def _stream(port: int) -> int:
    """Read one answer to its end; returns the completion tokens its usage names."""
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Go."}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body.encode())
    )
    tail = b""
    while data := await reader.read(2**18):
        tail = (tail + data)[-4096:]
    writer.close()
    if b"data: [DONE]" not in tail:
        raise RuntimeError(f"a stream broke off: {tail[-200:]!r}")
    usage = tail[tail.rindex(b'"completion_tokens":') :]
    return int(usage.split(b":")[1].split(b",")[0])


@contextmanager
def _server() -> Iterator[int]:
    """Run this module as a server and give its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.api_layer"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


async def _serve() -> None:
    os.sched_setaffinity(0, {SERVER_CORE})
    engine = FakeEngine(FakeOptions(script=tuple(_script()), max_num_seqs=1024))
    await engine.start()
    lifecycle = Lifecycle()
    lifecycle.mark_ready()
    runtime = Runtime(
        engine=engine,
        model=ServedModel(id=MODEL, root=MODEL, profile_id="", created=0),
        metrics=Metrics(MODEL, lambda: 0),
        lifecycle=lifecycle,
    )
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        async with ApiServer(runtime).listening(listener):
            print(listener.getsockname()[1], flush=True)
            await asyncio.Event().wait()


def _script() -> list[int]:
    text = vocabulary.encode_text(TEXT)
    return [
        *(vocabulary.CHANNEL, *vocabulary.encode_text("analysis"), vocabulary.MESSAGE),
        *(*text[: len(text) // 4], vocabulary.END),
        *(vocabulary.START, *vocabulary.encode_text("assistant")),
        *(vocabulary.CHANNEL, *vocabulary.encode_text("final"), vocabulary.MESSAGE),
        *(*text, vocabulary.RETURN),
    ]


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve())
