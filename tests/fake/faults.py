"""Faults of the scripted engine: what happens to it when it runs a prompt with a given token."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from engines.errors import OutOfMemory


class FakeFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault; `after` this many tokens of the request were generated."""

    token: int
    kind: Literal["kill", "spin", "stall", "memory"]
    after: Annotated[int, msgspec.Meta(ge=0)] = 0


class Stalled(Exception):
    """Raised to keep steps from ending while the process keeps running."""


def strike(faults: Iterable[FakeFault], prompt: tuple[int, ...], num_generated: int) -> None:
    """Trigger the faults that are due; raises Stalled or OutOfMemory."""
    for fault in faults:
        if fault.token in prompt and num_generated >= fault.after:
            _happen(fault.kind)


def _happen(kind: Literal["kill", "spin", "stall", "memory"]) -> None:
    match kind:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "spin":
            while True:  # the process no longer answers
                pass
        case "stall":
            raise Stalled
        case "memory":
            raise OutOfMemory("the script is out of memory")
