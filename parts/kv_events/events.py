"""What the prefix cache of an engine stores and drops, for routers that send requests to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engines.native.loop.block_pool import DEVICE


@dataclass(frozen=True, slots=True)
class KvEvents:
    """Where an engine publishes what its prefix cache stores and drops, in vLLM's terms."""

    endpoint: str  # tcp://ADDRESS:PORT, which it binds
    replay_endpoint: str | None = None  # None: missed events are not sent again
    topic: str = ""
    rank: int = 0  # among the engines of one server


@dataclass(slots=True)
class Stored:
    """Blocks that follow one another are found from now on."""

    hashes: list[bytes]
    parent: bytes | None  # the block before the first; None at the beginning and on the host
    token_ids: list[int]  # of all blocks; empty on the host, where the hashes are known already
    block_size: int
    sliding_window: int | None  # of the group of layers; None: full attention
    salt: str | None
    medium: str = DEVICE
    adapter: str | None = None  # its name


@dataclass(slots=True)
class Removed:
    """Blocks that are no longer found there."""

    hashes: list[bytes]
    is_window: bool  # of the group of layers with a sliding window
    medium: str


BlockEvent = Stored | Removed


class EventSink(Protocol):
    """Where the events of an engine go."""

    def start(self) -> None:
        """Take the address; raises EngineStartError if that cannot be."""

    def publish(self, events: Sequence[BlockEvent]) -> None:
        """Take what one step changed; returns at once."""

    def stop(self) -> None: ...
