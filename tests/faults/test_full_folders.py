"""Each folder that a server writes to is filled while it streams.

The streams end whole, new requests are answered, only what the disk was for is lost, the log says
so once, and it recovers by itself when room comes back.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.small_disk import SmallDisk, why_not

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
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}),
    ):
        assert server.post(path, **body).status_code == 200
    assert server.client.get("/v1/metrics").status_code == 200
    assert server.ready_status() == 200
    yield
    disk.check_full()
    disk.empty()
    assert server.chat().status_code == 200
    assert [child.pid for child in server.children] == pids, "a process died"


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


@pytest.mark.parametrize("num_workers", [1, 2])
def test_temporary_files(serve: Any, folder: Path, tmp_path: Path, num_workers: int) -> None:
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


def test_log(serve: Any, folder: Path) -> None:
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


def test_store(serve: Any, folder: Path, tmp_path: Path) -> None:
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
    check_it_stores(server, kept)
    assert len(errors(tmp_path)) == 1


def test_cache(serve: Any, folder: Path, tmp_path: Path) -> None:
    """The same for responses in the cache, which are opened with the first of them."""
    disk = SmallDisk(folder)
    server = serve(disk=disk, options=SLOW, NIM_CACHE_PATH=str(folder))
    with full(server, disk):
        for _ in range(4):
            assert server.post("/v1/responses", input="Hi").json()["store"] is False
    check_it_stores(server)
    assert len(errors(tmp_path)) == 1


def check_it_stores(server: Any, *kept: dict[str, Any]) -> None:
    again = server.post("/v1/responses", input="Hi").json()
    assert again["store"] is True
    for response in (*kept, again):
        assert server.client.get(f"/v1/responses/{response['id']}").json() == response
    assert server.interrupt() == 0


def errors(tmp_path: Path) -> list[str]:
    return [line for line in log_of(tmp_path) if line.startswith("ERROR")]
