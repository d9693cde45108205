"""One side of a comparison in a process of its own: neither disturbs the other's threads.

The idle side waits in a blocking read and costs the running one nothing.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from tools.benchmarks.workload import Job


class Runner(Protocol):
    """Generates jobs and says how long it took, in seconds."""

    def run(self, jobs: Sequence[Job]) -> float: ...


MakeRunner = Callable[[Path, str], Runner]


class Side:
    """A runner in a child process."""

    def __init__(
        self, make: MakeRunner, checkpoint: Path, dtype: str, environment: Mapping[str, str]
    ) -> None:
        """`make` is a class or function a child can import; `environment` is added to ours."""
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, make, checkpoint, dtype))
        before = dict(os.environ)
        os.environ.update(environment)
        try:
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()

    def run(self, jobs: Sequence[Job]) -> float:
        """Generate the jobs over there."""
        self._connection.send(list(jobs))
        seconds: float = self._connection.recv()
        return seconds

    def close(self) -> None:
        """End the child."""
        self._connection.send(None)
        self._process.join()


def _work(connection: Connection, make: MakeRunner, checkpoint: Path, dtype: str) -> None:
    runner = make(checkpoint, dtype)
    while (jobs := connection.recv()) is not None:
        connection.send(runner.run(jobs))
