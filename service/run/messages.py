"""What the parent and its API workers say to each other, over private pipes.

Down the worker's stdin: its spec, then a line for each change of the engine. It stays open as
long as the parent lives. Up its stdout: engines.process.wire.LifeMessage lines, as from the engine.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from service.run.startup import Launch
from service.settings.settings import Settings

BEAT_S: Final = 1.0  # how often a worker says that its loop runs
_LENGTH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class ApiWorkerSpec:
    """All that an API worker gets at its start."""

    number: int  # from 0; kept by the successor of a worker that died
    settings: Settings
    launch: Launch
    engine_addresses: tuple[str, ...]  # of each replica
    listener_fd: int
    shared_folder: Path | None = None  # where several workers count together; None: the only one
    is_brief: bool = False  # its log is a person's terminal
    is_successor: bool = False  # the server has been ready before

    def to_bytes(self) -> bytes:
        """The spec behind its length, for the worker's stdin."""
        # A pickle of our own objects, read by the process we start: it carries whatever
        # settings and profiles come to hold.
        body = pickle.dumps(self)
        return len(body).to_bytes(_LENGTH_BYTES) + body

    @classmethod
    def read(cls, descriptor: int) -> ApiWorkerSpec:
        """Read a spec from the beginning of the worker's stdin."""
        size = int.from_bytes(_read_exactly(descriptor, _LENGTH_BYTES))
        spec = pickle.loads(_read_exactly(descriptor, size))
        assert isinstance(spec, cls)
        return spec


class Download(msgspec.Struct, frozen=True):
    """How far the model's files are, while they are fetched or checked."""

    text: str  # for a person
    have_bytes: int
    total_bytes: int  # 0: not known


class EngineNews(msgspec.Struct, frozen=True):
    """What the engines' supervisors know, as their workers get it."""

    # Of each replica: why there is none now; None while it is ready.
    reasons: tuple[str | None, ...]
    num_restarts: int = 0  # of all
    download: Download | None = None  # before the engines are started
    step: str = ""  # of the first engine that starts, in its own words
    began_at: float = 0.0  # seconds since 1970: the start of the server
    ready_at: float | None = None  # None: it is still starting
    pids: tuple[int | None, ...] = ()  # of the engine processes; None for one that is not ready

    def to_line(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def of(cls, line: bytes) -> EngineNews:
        return msgspec.json.decode(line, type=cls)


def _read_exactly(descriptor: int, size: int) -> bytes:
    read = b""
    while len(read) < size:
        data = os.read(descriptor, size - len(read))
        if not data:
            raise EOFError("the parent process ended before it sent the configuration")
        read += data
    return read
