"""The soak's server: started as a user starts it, hurt on purpose, and measured."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2
import psutil

from service.harmony import vocabulary
from tests.soak.traffic import MODEL, POISON

READY_WITHIN_S: Final = 120.0
IDLE_WITHIN_S: Final = 30.0
STEP_TIMEOUT_S: Final = 4.0
CONTROL: Final = {
    "return": vocabulary.RETURN,
    "channel": vocabulary.CHANNEL,
    "start": vocabulary.START,
    "end": vocabulary.END,
    "message": vocabulary.MESSAGE,
    "call": vocabulary.CALL,
}
# What models write, and what they should not: `{name}` is a control token.
SCRIPTS: Final = (
    "{channel}analysis{message}Let me see.{end}{start}assistant"
    "{channel}final{message}Grüße 👩‍🚀!{return}",
    "{channel}analysis{message}A call.{end}{start}assistant{channel}commentary to=functions.f"
    '{message}{{"q": "é"}}{call}',
    "{channel}commentary{message}First, a word.{end}{start}assistant{channel}commentary "
    'to=functions.f{message}{{"q": 1{call}',
    "{message}No header at all.{return}",
    "{channel}{channel}final{start}{message}Torn {end}{channel}final{message}apart{return}",
    "{channel}nowhere{message}An unknown channel.{end}{start}user{message}Not mine.{return}",
    "{start}{start}{end}{call}{channel}final{message}" + "and so on, " * 60 + "{return}",
    "{channel}analysis{message}Thought without end " + "and on " * 60,
)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the two processes hold at one moment."""

    at_s: float
    server_mb: float
    server_files: int
    engine_mb: float | None
    engine_files: int | None


class SoakServer:
    """A running `harmonium serve`, with the scripted engine or on nano."""

    def __init__(self, engine: str, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "log.txt"
        settings = {
            "NIM_CACHE_PATH": str(folder / "cache"),
            "NIM_SERVED_MODEL_NAME": MODEL,
            "NIM_ENGINE_STEP_TIMEOUT_S": f"{STEP_TIMEOUT_S}",
            "NIM_RESPONSES_MAX_BYTES": f"{4 << 20}",  # full soon, so that it is seen to stay so
        }
        inherited = {name: v for name, v in os.environ.items() if not name.startswith("NIM_")}
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [*_program(engine), "serve", f"--server-port={port}"],
                stdout=log,
                stderr=log,
                env={**inherited, **settings},
                start_new_session=True,
            )
        self._started_s = time.monotonic()

    def wait_for_ready(self) -> float:
        """Return when it is ready, with the seconds that took."""
        begun_s = time.monotonic()
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > begun_s + READY_WITHIN_S:
                raise RuntimeError(f"the server is not ready:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.05)
        return time.monotonic() - begun_s

    def hurt(self, number: signal.Signals) -> None:
        """Send a signal to the engine process, if there is one now."""
        engine = self._child("engines.process.host")
        if engine is not None:
            engine.send_signal(number)

    def sample(self) -> Sample:
        """Measure the process that answers, and the engine's."""
        api, engine = self._child("service.run.worker"), self._child("engines.process.host")
        served = _held(api) if api is not None else (0.0, 0)
        held = _held(engine) if engine is not None else (None, None)
        return Sample(time.monotonic() - self._started_s, *served, *held)

    def metric(self, name: str) -> float | None:
        """A series of the server, summed over its labels; None where it is left out."""
        lines = httpx2.get(f"{self.url}/v1/metrics", timeout=30).text.splitlines()
        mine = [line for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in mine) if mine else None

    def wait_for_idle(self) -> None:
        """Return when nothing runs, or it has had time enough to end."""
        deadline_s = time.monotonic() + IDLE_WITHIN_S
        while self.metric("harmonium_engine_running_requests") and time.monotonic() < deadline_s:
            time.sleep(0.05)

    def stop(self) -> int:
        """Press Ctrl-C; the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        return self._process.wait(READY_WITHIN_S)

    def _is_ready(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/v1/health/ready", timeout=10).status_code == 200
        except httpx2.TransportError:
            return False

    def _child(self, module: str) -> psutil.Process | None:
        for child in psutil.Process(self._process.pid).children():
            try:
                if module in child.cmdline():
                    return child
            except psutil.Error:
                continue
        return None


def _held(process: psutil.Process) -> tuple[float, int]:
    try:
        return process.memory_info().rss / 2**20, process.num_fds()
    except psutil.Error:
        return 0.0, 0


def _program(engine: str) -> list[str]:
    if engine == "nano":
        return [sys.executable, "-m", "service"]
    (poison,) = set(vocabulary.encode_text(POISON)[:1])
    options = {
        "scripts": [_ids(script) for script in SCRIPTS],
        "step_s": 0.004,
        "faults": [{"token": poison, "kind": "kill"}],
        "max_model_len": 16_384,
    }
    return [sys.executable, "-m", "tests.soak.program", json.dumps(options)]


def _ids(script: str) -> list[int]:
    ids: list[int] = []
    for index, part in enumerate(script.replace("{{", "\0").replace("}}", "\1").split("{")):
        name, _, text = part.partition("}") if index else ("", "", part)
        ids += [CONTROL[name]] if name else []
        ids += vocabulary.encode_text(text.replace("\0", "{").replace("\1", "}"))
    return ids
