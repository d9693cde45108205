"""The attacked server: started as a user starts it, with a key for each caller."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import httpx2
import psutil

from service.harmony import vocabulary
from tests.attack import meter

ATTACKER: Final = "key-of-the-attacker-0123456789"
NEIGHBOUR: Final = "key-of-the-neighbour-0123456789"
_READY_WITHIN_S: Final = 120.0
_STEP_S: Final = 0.02
ENGINES: Final = ("scripted", "nano", "wide", "ports")
_WORKER: Final = "service.run.worker"
_ENGINE: Final = "engines.process.host"
_ENDLESS: Final = """
IDS = {head} + {word} * 130_000


def write(prompt_token_ids):
    return IDS
"""
_FOLDER: Final = Path(__file__).parent
_WARNING: Final = re.compile("^(?:WARNING|ERROR|CRITICAL) ", re.MULTILINE)


class AttackedServer:
    """A running `harmonium serve`, on nano or with a scripted engine of gpt-oss's context.

    Engine `wide` runs 256 requests at once, each without an end. Engine `ports` is nano with all
    its ports open.
    """

    def __init__(self, engine: str, folder: Path) -> None:
        self.ports = dict(zip(("api", "events", "replay"), _free_ports(3), strict=True))
        self.port = self.ports["api"]
        self._log = folder / "log.txt"
        self.responses = folder / "responses.sqlite"
        meters = folder / "meters"
        meters.mkdir()
        self.meters = meter.LoopMeters(meters)
        inherited = {name: v for name, v in os.environ.items() if not name.startswith("NIM_")}
        settings = {
            "NIM_CACHE_PATH": str(folder / "cache"),
            "NIM_RESPONSES_PATH": str(self.responses),
            "NIM_MODEL_NAME": "nano",
            "NIM_API_KEYS": f"{ATTACKER},{NEIGHBOUR}",
            "NIM_READ_WITHOUT_KEY": "metrics",
            meter.FOLDER: str(meters),
            "PYTHONPATH": f"{_FOLDER / 'loop_meter'}{os.pathsep}{_FOLDER.parents[1]}",
        }
        if engine == "ports":
            settings |= {
                "NIM_ENABLE_KV_CACHE_EVENTS": "1",
                "NIM_KV_EVENTS_ENDPOINT": f"tcp://127.0.0.1:{self.ports['events']}",
                "NIM_KV_EVENTS_REPLAY_ENDPOINT": f"tcp://127.0.0.1:{self.ports['replay']}",
            }
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*_program(engine, folder), "serve", f"--server-port={self.port}"],
                stdout=log,
                stderr=log,
                env={**inherited, **settings},
                start_new_session=True,
            )

    def wait_for_ready(self) -> None:
        """Return when it is; raises RuntimeError when it will not be."""
        deadline_s = time.monotonic() + _READY_WITHIN_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the server is not ready:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.1)

    def api_bytes(self, *, with_engine: bool = False) -> int:
        """The resident memory of the API processes, and of the engine's."""
        total, counted = 0, {_WORKER, *((_ENGINE,) if with_engine else ())}
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # the trial of a grammar has ended meanwhile
                total += process.memory_info().rss if counted & {*process.cmdline()} else 0
        return total

    def num_warnings(self) -> int:
        """Lines of the log that are warnings or errors."""
        return len(_WARNING.findall(self._log.read_text(errors="replace")))

    def stop(self, grace_s: float = 20.0) -> bool:
        """Send SIGTERM; whether it ended in time. It has ended in any case."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(grace_s)
            return True
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            return False

    def _is_ready(self) -> bool:
        try:
            url = f"http://127.0.0.1:{self.port}/v1/health/ready"
            return httpx2.get(url, timeout=10).status_code == 200
        except httpx2.TransportError:
            return False


def _free_ports(num: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(num)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _program(engine: str, folder: Path) -> list[str]:
    if engine in ("nano", "ports"):
        return [sys.executable, "-m", "service"]
    script = [vocabulary.CHANNEL, *vocabulary.encode_text("final"), vocabulary.MESSAGE]
    options: dict[str, object] = {
        "script": script + vocabulary.encode_text("word " * 200),
        "step_s": _STEP_S,
        "max_num_seqs": 32,
    }
    if engine == "wide":
        endless = folder / "endless.py"
        word = vocabulary.encode_text(" word")
        endless.write_text(_ENDLESS.format(head=script, word=word))
        options = {
            "script_file": str(endless),
            "step_s": 0.05,
            "tokens_per_step": 4,
            "max_num_seqs": 256,
            "max_model_len": 131_072,
        }
    return [sys.executable, "-m", "tests.soak.program", json.dumps(options)]
