"""Each folder that a server writes to is filled while it streams.

The streams end whole, new requests are answered, only what the disk was for is lost, the log says
so once, and it recovers by itself when room comes back.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.families import REQUESTS
from tests.faults.small_disk import SmallDisk, why_not
from tests.needs import needs

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(bool(why_not()), reason=f"no disk can be mounted here: {why_not()}"),
]

NUM_TOKENS = 120
SLOW = {"step_s": 0.02}
PATIENCE_S = 60.0


class Stream:
    """A chat that is streamed in a thread."""

    def __init__(self, server: Any) -> None:
        self._texts: list[str] = []
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._read, args=[server], daemon=True)
        self._thread.start()
        assert self._has_begun.wait(PATIENCE_S)

    def _read(self, server: Any) -> None:
        body = {
            "model": "nano",
            "messages": [{"role": "user", "content": "Hi"}],
            "stream": True,
            "max_tokens": NUM_TOKENS,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }
        with server.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            for line in answer.iter_lines():
                self._texts.append(line)
                self._has_begun.set()

    def check_whole(self) -> None:
        self._thread.join(PATIENCE_S)
        lines = [line for line in self._texts if line]
        assert lines[-1] == "data: [DONE]"
        assert f'"completion_tokens":{NUM_TOKENS}' in lines[-2]


@contextmanager
def full(server: Any, disk: SmallDisk) -> Iterator[None]:
    """A block in which the disk is full; streams that had begun before end whole in it, and new
    requests are answered."""
    pids = [child.pid for child in server.children]
    streams = [Stream(server) for _ in range(4)]
    disk.fill()
    for stream in streams:
        stream.check_whole()
    Stream(server).check_whole()
    for path, body in REQUESTS.items():
        assert server.post(path, **body).status_code == 200
    assert server.client.get("/v1/metrics").status_code == 200
    assert server.ready_status() == 200
    yield
    assert [child.pid for child in server.children] == pids, "a process died"
    restart(server)
    disk.check_full()
    disk.empty()
    assert server.chat().status_code == 200


def restart(server: Any) -> None:
    """Kill the engine and an API worker: both come back, and streams of the engine go on."""
    stream = Stream(server)
    server.engine.kill()
    stream.check_whole()
    server.api.kill()
    server.wait_for_ready()
    Stream(server).check_whole()


def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def answered(server: Any) -> float:
    text = server.client.get("/v1/metrics").text
    counts = re.findall(r"^harmonium_http_requests_total\{.*\} (\S+)$", text, re.M)
    return sum(map(float, counts))


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disk")  # short: sockets' paths are bounded


def log_of(tmp_path: Path) -> list[str]:
    return (tmp_path / "log.txt").read_text().splitlines()


@needs("responses")
@pytest.mark.parametrize("num_workers", [1, 2])
def test_full_temporary_files(serve: Any, folder: Path, tmp_path: Path, num_workers: int) -> None:
    """Nothing is lost: what the workers count is in memory."""
    disk = SmallDisk(folder)
    server = serve(disk=disk, options=SLOW, TMPDIR=str(folder), NIM_API_WORKERS=str(num_workers))
    before = answered(server)
    with full(server, disk):
        for number in range(50):  # each a new series
            server.client.get(f"/v1/responses/resp_{number}")
        assert answered(server) >= before + 50
    log = log_of(tmp_path)
    assert [line for line in log if "Metrics cannot be written" in line] == []
    assert server.interrupt() == 0


@needs("responses")
def test_full_log(serve: Any, folder: Path) -> None:
    """Lines are lost; their number is logged as soon as there is room, and no two are mixed up."""
    disk = SmallDisk(folder, has_log=True)
    server = serve(disk=disk, options=SLOW)
    log = disk.path / "log.txt"
    with full(server, disk):
        for _ in range(50):  # the file's last block has room for some lines
            assert server.client.get("/v1/responses/resp_no").status_code == 404
        size = log.stat().st_size
        assert server.chat().status_code == 200
        assert log.stat().st_size == size
    assert server.client.get("/v1/responses/resp_after").status_code == 404
    until(lambda: "resp_after" in log.read_text())
    lines = log.read_text().splitlines()
    assert sum("lines of the log were lost" in line for line in lines) == 1
    assert [
        line for line in lines if len(re.findall(r"\d{4}(-\d\d){2} \d\d:\d\d:", line)) > 1
    ] == []
    assert server.interrupt() == 0


@needs("responses")
def test_full_store(serve: Any, folder: Path, tmp_path: Path) -> None:
    """Responses are not stored, and say so."""
    disk = SmallDisk(folder)
    server = serve(disk=disk, options=SLOW, NIM_RESPONSES_PATH=str(folder / "responses.sqlite"))
    kept = server.post("/v1/responses", input="Hi").json()
    assert kept["store"] is True
    with full(server, disk):
        large = "word " * 20_000  # more than what SQLite's file has in spare pages
        lost = [server.post("/v1/responses", input=large).json() for _ in range(4)]
        assert lost[-1]["store"] is False
        assert lost[-1]["output"][-1]["content"][0]["text"]
        refused = server.post("/v1/responses", input=large, background=True)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_failed")
        assert len(errors(tmp_path)) == 1
    check_it_stores(server, kept)


@needs("responses")
def test_full_cache(serve: Any, folder: Path, tmp_path: Path) -> None:
    """The same for responses in the cache, which are opened with the first of them."""
    disk = SmallDisk(folder)
    server = serve(disk=disk, options=SLOW, NIM_CACHE_PATH=str(folder))
    with full(server, disk):
        for _ in range(4):
            assert server.post("/v1/responses", input="Hi").json()["store"] is False
        assert len(errors(tmp_path)) == 1
    check_it_stores(server)


def check_it_stores(server: Any, *kept: dict[str, Any]) -> None:
    again = server.post("/v1/responses", input="Hi").json()
    assert again["store"] is True
    for response in (*kept, again):
        assert server.client.get(f"/v1/responses/{response['id']}").json() == response
    assert server.interrupt() == 0


def errors(tmp_path: Path) -> list[str]:
    return [line for line in log_of(tmp_path) if line.startswith("ERROR")]


def test_full_shared_memory(serve: Any, nano_cache: Path, tmp_path: Path) -> None:
    """Nothing is lost: the native engine needs none."""
    disk = SmallDisk(Path("/dev/shm"))
    server = serve(disk=disk, is_native=True, NIM_CACHE_PATH=str(nano_cache), NIM_MODEL_NAME="nano")
    with full(server, disk):
        pass
    assert server.interrupt() == 0


KERNELS = """
import logging, sys
from pathlib import Path
from engines.native.backends.cuda.artefact import compiled_kernels
from engines.native.artefact.store import Part, Store
from tests.faults.small_disk import empty, fill
from triton.runtime.cache import FileCacheManager

store, disk = map(Path, sys.argv[1:])
part = Part("kernels", {})
logging.basicConfig(stream=sys.stdout, format="%(message)s")

def start(name):
    with compiled_kernels.kept(Store(store), part, Store(Path("/nowhere"))):
        cache = FileCacheManager(name)
        if cache.get_group(f"{name}.json"):
            return "found"
        cache.put_group(f"{name}.json", {"kernel.cubin": cache.put(bytes(4000), "kernel.cubin")})
        return "compiled"

print("before:", start("attention"), start("attention"))
fill(disk)
print("full:", start("attention"), start("router"))
empty(disk)
print("after:", start("router"), start("router"), start("attention"))
"""


@pytest.mark.parametrize(
    ("is_store", "found"),
    [
        (True, ["before: compiled found", "full: found compiled", "after: compiled found found"]),
        (False, ["before: compiled found", "full: found compiled", "after: found found found"]),
    ],
    ids=["kept", "unpacked"],
)
def test_full_kernels(folder: Path, tmp_path: Path, is_store: bool, found: list[str]) -> None:
    """Where kernels cannot be kept they are compiled again; where they cannot be unpacked, they are
    unpacked beside those that are kept. None is written while streams run."""
    disk = SmallDisk(folder, num_bytes=80 << 20)  # of which the store leaves 64 MiB free
    store = folder / "store" if is_store else tmp_path / "store"
    done = subprocess.run(
        [*disk.command, sys.executable, "-c", KERNELS, str(store), str(folder)],
        env={**os.environ, "TMPDIR": str(tmp_path if is_store else folder)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith(("before:", "full:", "after:"))] == found
    assert sum("cannot be saved" in line for line in lines) == is_store
