"""The floor under the delays: a loop that only writes. `python -m tools.benchmarks.bare_loop JSON`

Every connection gets one prepared event a step, all in the same step, as a batch of requests
would; what comes is not read as HTTP. The port is printed first, at the end of stdin the times
of the steps of each connection, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from typing import Any

EVENT = b"data: " + b"x" * 210 + b"\n\n"  # as long as a chat chunk with one token


class Writer(asyncio.Protocol):
    """One connection."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.times_ns: list[int] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.request_id = data.split(b"X-Request-Id: ")[1].split(b"\r")[0].decode()
        self._loop.running.append(self)


class Loop:
    """Steps all connections together."""

    def __init__(self, num_steps: int, step_s: float) -> None:
        self.running: list[Writer] = []
        self.ended: list[Writer] = []
        self._num_steps = num_steps
        self._step_s = step_s

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            for writer in list(self.running):
                writer.times_ns.append(time.monotonic_ns())
                writer.transport.write(EVENT)
                if len(writer.times_ns) == self._num_steps:
                    writer.transport.close()
                    self.running.remove(writer)
                    self.ended.append(writer)
            due = max(due + self._step_s, loop.time())
            await asyncio.sleep(due - loop.time())


async def _serve(num_steps: int, step_s: float) -> None:
    stepping = Loop(num_steps, step_s)
    running = asyncio.create_task(stepping.run())
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        server = await loop.create_server(lambda: Writer(stepping), sock=listener)
        print(listener.getsockname()[1], flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        server.close()
    running.cancel()
    print(json.dumps({writer.request_id: writer.times_ns for writer in stepping.ended}))


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(**json.loads(sys.argv[1])))
