"""What the event loops of the attacked server cost: written by loop_meter in their processes."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = "ATTACK_METERS"  # the environment's name of where the processes write
BEAT_S: Final = 0.005
LAYOUT: Final = struct.Struct("=dddd400s")


@dataclass(slots=True)
class Reading:
    """The worst of one loop between two looks at it."""

    turn_cpu_s: float = 0.0  # of the loop's thread between two beats
    process_cpu_s: float = 0.0  # of all threads meanwhile
    late_s: float = 0.0  # by the clock: what the loop waited for, too
    gc_s: float = 0.0
    place: str = ""  # what the longest turn was at

    @classmethod
    def read(cls, memory: mmap.mmap) -> Reading:
        turn_cpu_s, process_cpu_s, late_s, gc_s, place = LAYOUT.unpack_from(memory)
        return cls(
            turn_cpu_s, process_cpu_s, late_s, gc_s, place.rstrip(b"\0").decode("ascii", "replace")
        )

    def write(self, memory: mmap.mmap) -> None:
        place = self.place[:400].encode("ascii", "replace")
        LAYOUT.pack_into(
            memory, 0, self.turn_cpu_s, self.process_cpu_s, self.late_s, self.gc_s, place
        )


class LoopMeters:
    """The readings of one server's processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self) -> dict[str, Reading]:
        """By process, all since the last call."""
        return {path.stem: _taken(path) for path in sorted(self._folder.glob("*.meter"))}


def _taken(path: Path) -> Reading:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), LAYOUT.size) as memory:
        reading = Reading.read(memory)
        Reading().write(memory)
        return reading
