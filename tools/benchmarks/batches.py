"""A large batch on nano, whose processes are killed, and chats beside a batch: `batches CASE`.

`kills`: 10,000 lines; the engine is killed (SIGKILL) after a quarter, and all processes of the
server after a half and three quarters. Every custom_id must have one line of results. `beside`:
the time to the first text of chats one after another, alone and beside a batch that fills the
engine, in turn. Each starts a server of its own. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import psutil

Json = dict[str, Any]
ENDPOINT = "/v1/chat/completions"
PATIENCE_S = 600


class Serving:
    """`harmonium serve` on nano, ready; its batches are kept in the folder."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        inherited = {name: v for name, v in os.environ.items() if not name.startswith("NIM_")}
        own = {"NIM_CACHE_PATH": str(folder), "NIM_MODEL_NAME": "nano"}
        command = [sys.executable, "-m", "service", "serve", f"--server-port={port}"]
        with (folder / "log.txt").open("a") as log:
            self.process = subprocess.Popen(command, stderr=log, env=inherited | own)
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_ready():
            assert self.process.poll() is None, (folder / "log.txt").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            return self.client.get("/v1/health/ready").status_code == 200
        except httpx2.TransportError:
            return False

    def kill_engine(self) -> None:
        for child in psutil.Process(self.process.pid).children():
            if "engines.process.host" in child.cmdline():
                child.kill()

    def kill(self) -> None:
        """As a power failure ends a server: no process sees another one end."""
        server = psutil.Process(self.process.pid)
        everybody = [*server.children(recursive=True), server]
        for process in everybody:
            process.suspend()
        for process in everybody:
            process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)

    def begin(self, num_lines: int, max_tokens: int) -> str:
        """The id of a new batch."""
        body = {"model": "nano", "messages": message("Name a colour."), "max_tokens": max_tokens}
        line = {"method": "POST", "url": ENDPOINT, "body": body}
        text = "".join(json.dumps({"custom_id": f"n{n}"} | line) + "\n" for n in range(num_lines))
        files = {"file": ("in.jsonl", text.encode())}
        file = self._post("/v1/files", files=files, data={"purpose": "batch"})
        asked = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
        return str(self._post("/v1/batches", json=asked)["id"])

    def batch(self, id: str) -> Json:
        found: Json = self.client.get(f"/v1/batches/{id}").json()
        return found

    def wait_for(self, id: str, num_done: int) -> Json:
        while True:
            batch = self.batch(id)
            assert batch["failed_at"] is None, batch
            if batch["completed_at"] or 0 < num_done <= batch["request_counts"]["completed"]:
                return batch
            time.sleep(0.1)

    def first_text_ms(self) -> float:
        """Of a chat."""
        body = {"model": "nano", "messages": message("Hello!"), "max_tokens": 64, "stream": True}
        begun, first = time.perf_counter(), 0.0
        with self.client.stream("POST", ENDPOINT, json=body) as answer:
            for line in answer.iter_lines():
                if not first and ('"content":"' in line or '"reasoning":"' in line):
                    first = time.perf_counter()
        return 1000 * (first - begun)

    def _post(self, path: str, **content: Any) -> Json:
        answer = self.client.post(path, **content)
        assert answer.status_code == 200, answer.text
        made: Json = answer.json()
        return made


def message(text: str) -> list[Json]:
    return [{"role": "user", "content": text}]


def kills(folder: Path, num_lines: int) -> Json:
    begun = time.perf_counter()
    server = Serving(folder)
    id = server.begin(num_lines, max_tokens=4)
    server.wait_for(id, num_lines // 4)
    server.kill_engine()
    for num_done in (num_lines // 2, 3 * num_lines // 4):
        server.wait_for(id, num_done)
        server.kill()
        server = Serving(folder)
    batch = server.wait_for(id, 0)
    ids: Counter[str] = Counter()
    for name in ("output_file_id", "error_file_id"):
        if batch[name]:
            text = server.client.get(f"/v1/files/{batch[name]}/content").text
            ids.update(json.loads(line)["custom_id"] for line in text.splitlines())
    server.stop()
    return {
        "lines": num_lines,
        "seconds": round(time.perf_counter() - begun),
        "request_counts": batch["request_counts"],
        "custom_ids": len(ids),
        "custom_ids_not_once": sum(n != 1 for n in ids.values()),
        "kills": {"engine": 1, "server": 2},
    }


def beside(folder: Path, num_rounds: int, num_chats: int) -> Json:
    server = Serving(folder)
    times: dict[str, list[float]] = {"alone": [], "beside": []}
    server.first_text_ms()
    for _ in range(num_rounds):
        times["alone"] += [server.first_text_ms() for _ in range(num_chats)]
        id = server.begin(5000, max_tokens=64)
        server.wait_for(id, 1)
        times["beside"] += [server.first_text_ms() for _ in range(num_chats)]
        assert server.batch(id)["completed_at"] is None, "the batch ended before the chats"
        server.client.post(f"/v1/batches/{id}/cancel")
        while server.batch(id)["cancelled_at"] is None:
            time.sleep(0.1)
    server.stop()
    shown = {name: _percentiles(each) for name, each in times.items()}
    ratio = shown["beside"]["p99_ms"] / shown["alone"]["p99_ms"]
    return {"chats_each": num_rounds * num_chats, **shown, "p99_ratio": round(ratio, 2)}


def _percentiles(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {"p50_ms": round(cuts[49], 1), "p99_ms": round(cuts[98], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.batches")
    parser.add_argument("case", choices=("kills", "beside"))
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--chats", type=int, default=50)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.case == "kills":
            figures = kills(Path(folder), given.lines)
        else:
            figures = beside(Path(folder), given.rounds, given.chats)
    load = [round(each, 1) for each in os.getloadavg()]
    print(json.dumps({"case": given.case, "cpus": os.cpu_count(), "load": load, **figures}))


if __name__ == "__main__":
    main()
