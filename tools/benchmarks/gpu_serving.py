"""Starts and serving loads over HTTP at the default start, on this machine's GPU, beside a peer.

    python -m tools.benchmarks.gpu_serving [--folder DIR] [--results DIR] [--minutes 10]
    python -m tools.benchmarks.gpu_serving --peer 'vllm serve {model} --port {port} ...'

Writes a random checkpoint of gpt-oss-20b unless --folder has one, compiles the kernels ahead, and
starts `python -m service serve` with nothing set but the model: from the page cache, with every
load of LOADS; from disk (as root, who may drop the page cache); without a bound on gaps; and with
packed weights. --peer is a command that serves the checkpoint with OpenAI's API on {port}; {model}
is a folder as Hugging Face has it (peer_checkpoint.py). Its loads are the same, each warmed by a
pass of its own, as it may compile kernels when a shape first comes.

Results lie in --results as they are measured, one JSON of `harmonium bench` for each load and one
of the starts; `harmonium bench --report` shows them side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tools.benchmarks.startup import free_port

LOADS: Final = (  # and the seconds that each needs at least
    ("poisson=40", 30), ("agents=24", 40), ("beside=100000", 30), ("agents=64", 70),
    ("streams=400,rounds=1,answer=384", 20), ("rate=60,seconds=10", 100),
    ("long=32000", 8), ("long=64000", 10),
    ("long=120000", 16), ("streams=1000,rounds=1,answer=384", 30),
    ("streams=128,rounds=1,answer=512", 15), ("guided=16", 15),
)  # fmt: skip
_PEERS: Final = (
    ("agents=24", 70), ("poisson=40", 60), ("rate=30,seconds=10", 120), ("agents=64", 100),
    ("beside=100000", 60), ("streams=400,rounds=1,answer=384", 30),
    ("long=32000", 12), ("long=64000", 16),
    ("long=120000", 30),
)  # fmt: skip
_GIVE_UP_AFTER_S: Final = 300.0


class Sitting:
    """Servers one after the other, until the time is up."""

    def __init__(self, folder: Path, results: Path, minutes: float) -> None:
        self.folder, self.results = folder, results
        self.cache = results / "cache"
        self._end_s = time.monotonic() + 60 * minutes
        self._starts: dict[str, Any] = {}
        results.mkdir(parents=True, exist_ok=True)

    @property
    def left_s(self) -> float:
        return self._end_s - time.monotonic()

    @contextmanager
    def ours(self, name: str, **settings: str) -> Iterator[str | None]:
        """Our server, with nothing set but the model and these."""
        environment = self.environment | settings
        command = [sys.executable, "-m", "service", "serve"]
        with self.server(name, command, environment, "/v1/health/ready") as url:
            yield url

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "NIM_AUTH": "off",
            "NIM_MODEL_NAME": "gpt-oss-20b",
            "NIM_MODEL_PATH": str(self.folder),
            "NIM_SERVED_MODEL_NAME": "gpt-oss",
            "NIM_CACHE_PATH": str(self.cache),
        }

    @contextmanager
    def server(
        self, name: str, command: list[str], environment: dict[str, str], path: str = "/health"
    ) -> Iterator[str | None]:
        """A server's URL once it is ready, and how long that took; None if it never is."""
        port = free_port()
        command = [word.replace("{port}", str(port)) for word in command]
        environment = environment | {"NIM_SERVER_PORT": str(port)}
        url, began_s = f"http://127.0.0.1:{port}", time.monotonic()
        with (self.results / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            try:
                is_ready = _wait_until_ready(process, url + path)
                ready_s = round(time.monotonic() - began_s, 2) if is_ready else None
                self.keep(name, {"ready_s": ready_s, "memory_mib": _memory_mib()})
                yield url if is_ready else None
                self.keep(f"{name}, after loads", {"memory_mib": _memory_mib()})
            finally:
                _stop(process)

    def load(
        self, name: str, url: str | None, loads: Iterable[tuple[str, float]], *options: str
    ) -> None:
        """Run the loads for which there is time, each in a process of its own."""
        for load, needed_s in loads:
            if url is None or self.left_s < needed_s:
                print(f"{name}: no time for {load}", flush=True)
                continue
            path = self.results / f"{name}-{load.partition(',')[0].replace('=', '')}.json"
            command = [sys.executable, "-m", "service", "bench", "--tokens", *options]
            command += ["--url", f"{name}={url}", "--model", "gpt-oss", "--output", str(path)]
            command += ["--load", load]
            try:
                subprocess.run(command, timeout=max(self.left_s, 1), check=False)
            except subprocess.TimeoutExpired:
                print(f"{name}: {load} took too long", flush=True)

    def keep(self, name: str, value: Any) -> None:
        self._starts[name] = value
        print(f"{name}: {json.dumps(value)}", flush=True)
        (self.results / "starts.json").write_text(json.dumps(self._starts, indent=1) + "\n")


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> bool:
    give_up_at = time.monotonic() + _GIVE_UP_AFTER_S
    while process.poll() is None and time.monotonic() < give_up_at:
        try:
            with urllib.request.urlopen(url, timeout=2) as response:
                if response.status == 200:
                    return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.05)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _memory_mib() -> int | None:
    """Of the first GPU, in use."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(command, capture_output=True, text=True).stdout.split()[0])
    except (OSError, IndexError, ValueError):
        return None


def _drop_page_cache() -> bool:
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def prepare(folder: Path) -> None:
    """A checkpoint, unless there is one, and the kernels compiled ahead."""
    command = [sys.executable, "-m", "engines.native.backends.cuda.offline", "--models", "20b"]
    compiling = subprocess.Popen(command)
    if not (folder / "config.json").exists():
        code = (
            "import sys, torch; from pathlib import Path;"
            "from tools.benchmarks.published import write_published;"
            "from engines.native.backends.cuda.offline.published import gpt_oss;"
            "write_published(Path(sys.argv[1]), gpt_oss('20b'), torch.device('cuda'))"
        )
        subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
    if compiling.wait():
        raise SystemExit("The kernels could not be compiled")


def measure_ours(sitting: Sitting) -> None:
    with sitting.ours("page-cache") as url:
        sitting.load("default", url, LOADS)
    if sitting.left_s > 45 and _drop_page_cache():
        with sitting.ours("disk"):
            pass
    if sitting.left_s > 60:
        with sitting.ours("no-bound", NIM_MAX_TOKEN_GAP_MS="0") as url:
            sitting.load(
                "throughput", url, [("agents=24", 32), ("streams=400,rounds=1,answer=384", 20)]
            )
    if sitting.left_s > 60:
        command = [sys.executable, "-m", "service", "build-engine"]
        subprocess.run(command, env=sitting.environment, check=False)
        with sitting.ours("packed"):
            pass


def measure_peer(sitting: Sitting, command: str) -> None:
    from tools.benchmarks.peer_checkpoint import prepare as prepare_peer

    model = sitting.results / "peer-model"
    prepare_peer(sitting.folder, model)
    words = [word.replace("{model}", str(model)) for word in shlex.split(command)]
    environment = {**os.environ, "TIKTOKEN_ENCODINGS_BASE": str(model), "HF_HUB_OFFLINE": "1"}
    with sitting.server("peer", words, environment) as url:
        sitting.load("peer", url, _PEERS, "--warm-up")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="of a checkpoint; written where there is none")
    parser.add_argument("--results", type=Path, default=Path("build/gpu-serving"))
    parser.add_argument("--minutes", type=float, default=10, help="in which loads may begin")
    parser.add_argument("--peer", help="a command with {model} and {port}; asked instead of ours")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="harmonium-serving-") as scratch:
        folder: Path = given.folder or Path(scratch) / "model"
        sitting = Sitting(folder, given.results.resolve(), given.minutes)
        prepare(folder)
        if given.peer:
            measure_peer(sitting, given.peer)
        else:
            measure_ours(sitting)


if __name__ == "__main__":
    main()
