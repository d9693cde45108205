"""The processes of the other ranks, as the first one starts, checks and ends them."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Final

import torch

from engines.errors import EngineStartError
from engines.native.backends.base import RankLost
from engines.native.backends.cpu.exchange import First
from engines.native.config import NativeConfig
from engines.release import release

_START_S: Final = 120.0  # for a rank's first words; to import torch takes seconds
_LAST_S: Final = 1.0  # for the exit status of one that has closed its connection

Facts = Mapping[str, str]

log = logging.getLogger(__name__)


def facts(config: NativeConfig) -> Facts:
    """What has to be the same on all ranks, by what people call it."""
    return {
        "Harmonium": release(),
        "PyTorch": torch.__version__,
        "config.json": (config.model_dir / "config.json").read_text(encoding="utf-8"),
    }


def check_alike(own: Facts, others: Sequence[Facts]) -> None:
    """Raise EngineStartError naming what a rank has otherwise than the first."""
    for rank, each in enumerate(others, 1):
        for name, value in own.items():
            if each[name] != value:
                values = "" if "\n" in value else f" ({value}, and there {each[name]})"
                raise EngineStartError(
                    f"{name} of rank {rank} is not that of the first rank{values}; start again once"
                    " no installation or download is under way"
                )


class Team:
    """All other ranks, started; nothing is read of the weights yet."""

    def __init__(self, config: NativeConfig, python: str = sys.executable) -> None:
        """Raises EngineStartError where one does not start, or is not like this one."""
        size = config.tensor_parallel
        num_threads = max((config.num_threads or torch.get_num_threads()) // size, 1)
        self.config = config = replace(config, num_threads=num_threads)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        try:
            for _ in range(1, size):
                self._start(python)
            self.exchange = First(self._connections, self._end_of)
            self._check()
        except BaseException as error:
            self.close()
            if isinstance(error, RankLost):
                raise EngineStartError(f"{error}; what it said is in the log above") from error
            raise

    def close(self) -> None:
        """End all ranks, which have nothing to keep."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def _start(self, python: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            module = "engines.native.backends.cpu.ranks.host"
            command = [python, "-P", "-m", module, str(theirs.fileno())]
            self._connections.append(Connection(ours.detach()))
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # ours may carry reports to a parent
                    pass_fds=[theirs.fileno()],
                )
            )

    def _check(self) -> None:
        for rank, connection in enumerate(self._connections, 1):
            with contextlib.suppress(OSError):  # one that is gone is named when it is heard
                connection.send((rank, self.config, log.getEffectiveLevel()))
        end_s = time.monotonic() + _START_S
        for rank, connection in enumerate(self._connections, 1):
            if not connection.poll(max(end_s - time.monotonic(), 0.0)):
                raise EngineStartError(
                    f"rank {rank} of {self.exchange.size} has said nothing for {_START_S:.0f} s;"
                    " see whether the machine has free cores, and start again"
                )
        found = [self.exchange.hear(rank) for rank in range(1, self.exchange.size)]
        check_alike(facts(self.config), found)
        self.exchange.tell("load")

    def _end_of(self, rank: int) -> str:
        try:
            status = self._processes[rank - 1].wait(_LAST_S)
        except subprocess.TimeoutExpired:
            return "has closed its connection"
        if status == -9:
            return "was killed (signal 9), perhaps by the kernel for lack of memory"
        return f"ended by signal {-status}" if status < 0 else f"ended with exit status {status}"
