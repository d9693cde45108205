"""Which of our files a start and one streamed chat request pass.

`python -m tests.architecture.path` prints them, or ends after LIMIT_S with what it waits for.

The API worker and the engine's process are put into one, with their socket between them and nano
behind it, so that one look sees every file. A start passes the files that it loads; a request
those of which a function runs from its first byte to its log line, whichever request it is: what
the clock runs beside some of them (beats) is not theirs.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import httpx2

from engines.factory import create
from engines.fleet import Fleet
from engines.process import host
from engines.process.client import EngineClient
from engines.process.server import EngineServer
from service import __main__ as command_line
from service.cli import serve
from service.run import service as parent
from service.run import worker
from service.run.listener import listen, url_of
from service.run.server import ApiServer
from service.run.startup import prepare
from service.run.wiring import build_runtime
from service.settings.settings import load

ROOT = Path(__file__).parents[2]
# What a start loads in each of its processes.
PROCESSES = (command_line, serve, parent, worker, host)
ROOMS = ("parts", "service", "auth", "engines", "profiles")
NUM_REQUESTS = 8
SETTLE_S = 0.1
LIMIT_S = 300  # half a minute on an idle machine
BODY = {
    "model": "nano",
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "stream": True,
    "max_completion_tokens": 32,
}


class Watch:
    """Sees in every thread which files' functions run while it is on."""

    def __init__(self) -> None:
        self._is_on = False
        self._names: set[str] = set()
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._is_on and event == "call" and frame.f_code.co_name != "<module>":
            self._names.add(frame.f_code.co_filename)

    def begin(self) -> None:
        self._names.clear()
        self._is_on = True

    def end(self) -> set[Path]:
        """Our files that were seen since begin()."""
        self._is_on = False
        return _ours(self._names)


def _ours(names: Iterable[str | None]) -> set[Path]:
    places = [
        Path(name).relative_to(ROOT) for name in names if name and name.startswith(f"{ROOT}/")
    ]
    return {place for place in places if place.parts[0] in ROOMS and (ROOT / place).stat().st_size}


def _num_lines(paths: Iterable[Path]) -> int:
    return sum(len((ROOT / path).read_bytes().splitlines()) for path in paths)


async def look(folder: Path) -> tuple[set[Path], set[Path]]:
    """The files of a start, and those of a request."""
    watch = Watch()
    settings = load({"cache_path": folder, "model_name": "nano", "served_model_name": "nano"})
    launch = prepare(settings)
    server = EngineServer(f"ipc://{folder}/engine.sock")
    client = EngineClient(f"ipc://{folder}/engine.sock")
    engine = await asyncio.to_thread(create, launch.spec)
    await engine.start()
    server.serve(engine)
    runtime = build_runtime(settings, launch, _NoRestarts(), Fleet([client]))
    with listen("127.0.0.1", 0) as listener:
        async with ApiServer(runtime).listening(listener), httpx2.AsyncClient(timeout=60) as http:
            await client.start()
            url = f"{url_of(listener)}/v1/chat/completions"
            runtime.lifecycle.mark_ready()
            await _ask(http, url)  # what the first one alone loads and wakes belongs to the start
            loaded = _ours(getattr(m, "__file__", None) for m in list(sys.modules.values()))
            seen = []
            for _ in range(NUM_REQUESTS):
                watch.begin()
                await _ask(http, url)
                await asyncio.sleep(SETTLE_S)  # its counts and its log line follow the last byte
                seen.append(watch.end())
    await client.stop()
    await server.close()
    await engine.stop()
    return loaded, set.intersection(*seen)


async def _ask(http: httpx2.AsyncClient, url: str) -> None:
    async with http.stream("POST", url, json=BODY) as response:
        text = (await response.aread()).decode()
    assert text.endswith("data: [DONE]\n\n"), text


class _NoRestarts:
    num_restarts = 0
    download = (0, 0)
    is_starting = False
    start_s = 0.0

    def kill(self) -> int:
        return 0


def main() -> None:
    """Print the files by room, then the counts and one JSON document."""
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    with tempfile.TemporaryDirectory() as folder:
        loaded, passed = asyncio.run(look(Path(folder)))
    for path in sorted(passed):
        print(f"  {path}")
    counts = Counter("/".join(path.parts[:2]) for path in passed)
    print("by room:", ", ".join(f"{room} {number}" for room, number in sorted(counts.items())))
    figures = {
        name: {"files": len(paths), "lines": _num_lines(paths)}
        for name, paths in (("start", loaded), ("request", passed))
    }
    for name, figure in figures.items():
        print(f"a {name} passes {figure['files']} files of {figure['lines']} lines")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
