"""The soak's server: started as a user starts it, hurt on purpose, and measured."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2
import psutil

from service.harmony import vocabulary
from tests.soak.traffic import MODEL, POISON

READY_WITHIN_S: Final = 300.0
IDLE_WITHIN_S: Final = 60.0
STEP_TIMEOUT_S: Final = {"scripted": 4.0, "nano": 20.0}  # a busy machine's step is no fault
DRAIN_S: Final = 90
NUM_WORKERS: Final = 2
NUM_ENGINES: Final = 2
WORKER: Final = "service.run.worker"
HOST: Final = "engines.process.host"
MODULES: Final = {"worker": WORKER, "engine": HOST}
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
    """What the processes of a server hold at one moment."""

    at_s: float
    memory_mb: Mapping[str, float]  # its share of the pages (PSS), by process
    files: int
    threads: int
    sockets: int
    disk_mb: float | None  # None while it is full on purpose
    is_whole: bool  # no process is away

    @property
    def all_mb(self) -> float:
        return sum(self.memory_mb.values())

    @property
    def engines_mb(self) -> float:
        """Grows until each page of the K/V cache has been used once."""
        return sum(mb for name, mb in self.memory_mb.items() if name.startswith("engine"))

    @property
    def server_mb(self) -> float:
        return self.all_mb - self.engines_mb


class SoakServer:
    """A running `harmonium serve`, with the scripted engine or on nano."""

    def __init__(self, engine: str, folder: Path, log: Path, port: int | None = None) -> None:
        """`folder`: its disk; `log`: gets what it writes; `port`: None takes a free one."""
        self.engine, self.folder, self.log = engine, folder, log
        self.port = port or _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        (folder / "tmp").mkdir(exist_ok=True)
        settings = {
            "NIM_CACHE_PATH": str(folder / "cache"),
            "TMPDIR": str(folder / "tmp"),
            "NIM_SERVED_MODEL_NAME": MODEL,
            "NIM_API_WORKERS": f"{NUM_WORKERS}",
            "NIM_REPLICAS": f"{NUM_ENGINES}",
            "NIM_DRAIN_GRACE_S": f"{DRAIN_S}",
            "NIM_ENGINE_STEP_TIMEOUT_S": f"{STEP_TIMEOUT_S[engine]}",
            # Full soon, so that they are seen to stay so.
            "NIM_RESPONSES_MAX_BYTES": f"{4 << 20}",
            "NIM_KVCACHE_PERCENT": "0.12",
        }
        inherited = {name: v for name, v in os.environ.items() if not name.startswith("NIM_")}
        with self.log.open("a") as out:
            self._process = subprocess.Popen(
                [*_program(engine), "serve", f"--server-port={self.port}"],
                stdout=out,
                stderr=out,
                env={**inherited, **settings},
                start_new_session=True,
            )
        self.session = self._process.pid
        self.family = [self]  # and all that were started after it

    def another(self, port: int | None = None) -> SoakServer:
        """Start one more on the same disk."""
        server = SoakServer(self.engine, self.folder, self.log, port)
        server.family = self.family
        self.family.append(server)
        return server

    def wait_for_ready(self) -> float:
        """Return when it is ready, with the seconds that took."""
        begun_s = time.monotonic()
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > begun_s + READY_WITHIN_S:
                raise RuntimeError(f"the server is not ready:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.1)
        return time.monotonic() - begun_s

    def kill(self) -> None:
        """Kill the process that was started, as the system does for want of memory."""
        self._process.kill()
        self._process.wait()

    def hurt(self, module: str, index: int, number: signal.Signals) -> None:
        """Send a signal to one of its processes, if that is there now."""
        found = self._children(module)
        if found:
            found[index % len(found)].send_signal(number)

    def sample(self, at_s: float, *, is_full: bool = False) -> Sample:
        """Measure all its processes."""
        held = {"main": _held(psutil.Process(self._process.pid))}
        for name, module in MODULES.items():
            for index, child in enumerate(self._children(module)):
                held[f"{name} {index}"] = _held(child)
        there = [found for found in held.values() if found is not None]
        return Sample(
            at_s,
            {name: found.pss_mb for name, found in held.items() if found is not None},
            sum(found.files for found in there),
            sum(found.threads for found in there),
            sum(found.sockets for found in there),
            None if is_full else _used_mb(self.folder),
            len(there) == 1 + NUM_WORKERS + NUM_ENGINES,
        )

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

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Press Ctrl-C; the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait(READY_WITHIN_S)

    def _is_ready(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/v1/health/ready", timeout=10).status_code == 200
        except httpx2.TransportError:
            return False

    def _children(self, module: str) -> list[psutil.Process]:
        """Those that run a module, the oldest first."""
        found = []
        for child in psutil.Process(self._process.pid).children():
            try:
                if module in child.cmdline():
                    found.append((child.create_time(), child.pid, child))
            except psutil.Error:
                continue
        return [child for _, _, child in sorted(found, key=lambda one: one[:2])]


@dataclass(frozen=True, slots=True)
class _Held:
    pss_mb: float
    files: int
    threads: int
    sockets: int


def _held(process: psutil.Process) -> _Held | None:
    """What it has; None of one that ends meanwhile."""
    folder = Path(f"/proc/{process.pid}")
    try:
        lines = (folder / "smaps_rollup").read_text().splitlines()
        pss_kb = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        names = [os.readlink(entry) for entry in (folder / "fd").iterdir()]
        return _Held(
            pss_kb / 1024,
            len(names),
            process.num_threads(),
            sum(name.startswith("socket:") for name in names),
        )
    except (psutil.Error, OSError, StopIteration):
        return None


def _used_mb(folder: Path) -> float:
    sizes = [0]
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            sizes.append(path.stat().st_blocks * 512)
    return sum(sizes) / 2**20


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def processes_of(sessions: Collection[int]) -> list[psutil.Process]:
    """Those that are there still."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


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
