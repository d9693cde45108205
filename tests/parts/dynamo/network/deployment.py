"""Deployments of real Dynamo on this machine: workers, fronts, and what they listen on.

`make test-dynamo` names the Python of Dynamo's environment. To have a front in this process too,
its packages are put behind ours.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from engines.base import EngineInfo
from engines.factory import about
from engines.process.client import EngineClient
from engines.process.supervisor import EngineSupervisor, RestartPolicy
from engines.spec import EngineSpec
from parts.dynamo.handover.spec import KvHandover
from parts.dynamo.network.runtime import Discovery
from parts.dynamo.network.supervisor import WorkerSupervisor

_MADE: Final = Path(__file__).parents[4] / ".engines" / "dynamo" / "bin" / "python"
PYTHON: Final = os.environ.get("TEST_ENGINE_PYTHON", str(_MADE))
ON_LOOPBACK: Final = {
    f"DYN_{name}_HOST": "127.0.0.1" for name in ("TCP_RPC", "TCP_RESPONSE_STREAM", "EVENT_PLANE")
}
SCRIPT: Final = list(range(11, 60))
QUICK: Final = RestartPolicy(first_delay_s=0.05, max_delay_s=0.05)  # however often it is killed
_numbers = itertools.count()


def use_library() -> None:
    """Let this process import Dynamo's packages, and keep it to the loopback."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    asked = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    if (folder := asked.stdout.strip()) not in sys.path:
        sys.path.append(folder)
    os.environ.update(ON_LOOPBACK | dict(about("dynamo").environment))
    if "DYN_FILE_KV" not in os.environ:
        os.environ["DYN_FILE_KV"] = discovery = tempfile.mkdtemp(prefix="dynamo-")
        atexit.register(shutil.rmtree, discovery, ignore_errors=True)


class Deployment:
    """One endpoint's workers and fronts; all are stopped at the end."""

    def __init__(self, stack: AsyncExitStack, discovery: Discovery = "file") -> None:
        self.endpoint = f"t{os.getpid()}x{next(_numbers)}.backend.generate"
        self.discovery = discovery
        self._stack = stack

    async def worker(self, spec: EngineSpec | None = None, **options: Any) -> WorkerSupervisor:
        """Start a worker of an engine, by default the scripted one with these options."""
        spec = spec or scripted(**options)
        worker = WorkerSupervisor(
            EngineSupervisor(spec, QUICK, dict(os.environ)),
            self.endpoint,
            self.discovery,
            handover=KvHandover.of(spec),
            policy=QUICK,
            environment=dict(os.environ),
            python=Path(PYTHON),
        )
        await worker.start()
        self._stack.push_async_callback(worker.stop, 0.0)
        return worker

    def front_spec(self, **options: Any) -> EngineSpec:
        return EngineSpec(
            "dynamo", {"endpoint": self.endpoint, "discovery": self.discovery, **options}
        )

    async def front(self, **options: Any) -> EngineClient:
        """Start a front, and a client of it."""
        supervisor = EngineSupervisor(
            self.front_spec(**options), QUICK, dict(os.environ), python=Path(PYTHON)
        )
        await supervisor.start()
        self._stack.push_async_callback(supervisor.stop, 0.0)
        client = supervisor.client()
        await client.start()
        self._stack.push_async_callback(client.stop)
        return client


def scripted(**options: Any) -> EngineSpec:
    given = {"script": SCRIPT, "step_s": 0.01, "vocab_size": 1024, **options}
    return EngineSpec("tests.fake", given, {"max_model_len": 4096, "max_num_seqs": 8})


@asynccontextmanager
async def deployment(discovery: Discovery = "file") -> AsyncIterator[Deployment]:
    use_library()
    async with AsyncExitStack() as stack:
        yield Deployment(stack, discovery)


@asynccontextmanager
async def front_of_worker(spec: EngineSpec) -> AsyncIterator[EngineSpec]:
    """A worker that runs `spec`, and the spec of a front of it."""
    async with deployment() as started:
        await started.worker(spec)
        options = {k: v for k, v in spec.options.items() if k == "max_num_waiting"}
        yield started.front_spec(**options)


async def until(is_so: Callable[[], bool], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not is_so():
            await asyncio.sleep(0.01)


async def until_capacity(client: EngineClient, max_num_seqs: int, within_s: float = 30.0) -> None:
    def info() -> EngineInfo:
        return client.info

    await until(lambda: info().max_num_seqs == max_num_seqs, within_s)
