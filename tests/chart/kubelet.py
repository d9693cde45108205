"""What a kubelet and a Deployment do with a rendered pod, as far as one machine can: the pod's
command, environment, probes, preStop and grace period, on a process in place of a container.

Two things differ from a cluster: each pod listens on a port of its own, and has a cache folder of
its own instead of a volume.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import loopback

COMMAND = ["harmonium", "serve"]  # the image's ENTRYPOINT and CMD


def free_port() -> int:
    """Of those that the system does not give to connections, so that none takes it meanwhile."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10_000, first)
        with socket.socket(loopback.FAMILY) as probe:
            if probe.connect_ex((loopback.ADDRESS, port)):
                return port


@dataclass
class PodSpec:
    """The parts of a rendered pod that decide how it lives."""

    environment: dict[str, str]
    probes: dict[str, dict[str, Any]]
    pre_stop: list[str]
    grace_s: int

    @classmethod
    def of(cls, objects: dict[str, Any]) -> PodSpec:
        pod = objects["Deployment"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        given = {item["name"]: item["value"] for item in container["env"]}
        return cls.of_pod(pod, objects["ConfigMap"]["data"] | given)

    @classmethod
    def of_pod(cls, pod: dict[str, Any], environment: dict[str, str]) -> PodSpec:
        container = pod["containers"][0]
        return cls(
            environment,
            {kind: container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")},
            container["lifecycle"]["preStop"]["exec"]["command"],
            pod["terminationGracePeriodSeconds"],
        )


@dataclass
class Pod:
    """One process; `is_ready` is what the readiness probe says, as the Service sees it."""

    spec: PodSpec
    port: int
    folder: Path
    is_ready: bool = False
    is_leaving: bool = False
    was_killed: bool = False
    never_started: bool = False  # the startup probe's limit is over
    restarts: int = 0
    _process: asyncio.subprocess.Process | None = None
    _probing: asyncio.Task[None] | None = field(default=None, repr=False)

    async def start(self, program: Path) -> None:
        ours = {"NIM_SERVER_PORT": str(self.port), "NIM_CACHE_PATH": str(self.folder)}
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with (self.folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                program,
                *COMMAND[1:],
                env=inherited | self.spec.environment | ours,
                stdout=log,
                stderr=log,
            )
        self.never_started = False
        self._probing = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        startup = self.spec.probes["startup"]
        for _ in range(startup["failureThreshold"]):
            if await self._answers(startup):
                break
            await asyncio.sleep(startup["periodSeconds"])
        else:
            self.never_started = True
            return
        self.is_ready = True
        await asyncio.gather(self._watch_readiness(), self._watch_life())

    async def _watch_readiness(self) -> None:
        probe, failures = self.spec.probes["readiness"], 0
        while True:
            await asyncio.sleep(probe["periodSeconds"])
            failures = 0 if await self._answers(probe) else failures + 1
            self.is_ready = failures < probe["failureThreshold"] and not self.is_leaving

    async def _watch_life(self) -> None:
        probe, failures = self.spec.probes["liveness"], 0
        while True:
            await asyncio.sleep(probe["periodSeconds"])
            failures = 0 if await self._answers(probe) else failures + 1
            self.restarts += failures == probe["failureThreshold"]

    async def _answers(self, probe: dict[str, Any]) -> bool:
        get = probe["httpGet"]
        url = f"{get.get('scheme', 'HTTP').lower()}://{loopback.IN_URL}:{self.port}{get['path']}"
        return await asyncio.to_thread(_is_ok, url, probe["timeoutSeconds"])

    async def delete(self) -> int:
        """Leave the Service and run preStop at once, then SIGTERM, and SIGKILL when grace ends."""
        process, probing = self._process, self._probing
        assert process is not None
        assert probing is not None
        self.is_leaving, self.is_ready = True, False
        probing.cancel()
        try:
            async with asyncio.timeout(self.spec.grace_s):
                pause = await asyncio.create_subprocess_exec(*self.spec.pre_stop)
                await pause.wait()
                if process.returncode is None:  # else it waits to be started again
                    process.send_signal(signal.SIGTERM)
                return await process.wait()
        except TimeoutError:
            self.was_killed = True
            await self.kill()
            return -signal.SIGKILL

    async def kill(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


def _is_ok(url: str, timeout_s: float) -> bool:
    context = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(url, timeout=timeout_s, context=context) as answer:
            return 200 <= int(answer.status) < 400
    except (urllib.error.URLError, OSError):
        return False
