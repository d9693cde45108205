"""What the parent and its API workers say to each other, over pipes that nobody else sees.

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
class WorkerSpec:
    """All that an API worker is told at its start."""

    number: int  # from 0; kept by the successor of a worker that died
    settings: Settings
    launch: Launch
    engine_addresses: tuple[str, ...]  # of each replica
    listener_fd: int
    shared_folder: Path  # where the workers count together

    def to_bytes(self) -> bytes:
        """The spec behind its length, for the worker's stdin."""
        # A pickle of our own objects, read by the process we start: it carries whatever
        # settings and profiles come to hold.
        body = pickle.dumps(self)
        return len(body).to_bytes(_LENGTH_BYTES) + body

    @classmethod
    def read(cls, descriptor: int) -> WorkerSpec:
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
    """What the engines' supervisors know, as their workers are told."""

    reasons: tuple[
        str | None, ...
    ]  # of each replica: why there is none now; None while it is ready
    num_restarts: int = 0  # of all
    download: Download | None = None  # before the engines are started

    def to_line(self) -> bytes:
        """The news as a line of JSON."""
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def of(cls, line: bytes) -> EngineNews:
        """The news of a line of JSON."""
        return msgspec.json.decode(line, type=cls)


def _read_exactly(descriptor: int, size: int) -> bytes:
    read = b""
    while len(read) < size:
        data = os.read(descriptor, size - len(read))
        if not data:
            raise EOFError("the parent went away before it had told what to serve")
        read += data
    return read
