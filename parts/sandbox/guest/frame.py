"""A program in a sandbox: bounds itself, then answers requests.

It imports the standard library alone, for nothing else of Harmonium is in the sandbox. A request
is a line of a mark and a number of bytes, then those bytes; its output ends with the mark.
"""

from __future__ import annotations

import io
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

MEMORY_BYTES = 512 << 20  # of a process; all together: sandbox.py
CPU_S = 120
MOST_PROCESSES = 32  # and threads; for a server of root: sandbox.py
FILE_BYTES = 64 << 20
MOST_FILES = 256
OUTPUT_BYTES = (64 << 10) - 64  # with the word that it was cut, no more than a result may have


class Printed(io.RawIOBase):
    """Standard output up to a bound; what comes after it is dropped, and said once."""

    def __init__(self) -> None:
        self.left = 0
        self.is_cut = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        shown = bytes(data)[: self.left]
        if shown:
            os.write(1, shown)
        if len(shown) < len(data) and not self.is_cut:
            self.is_cut = True
            os.write(1, b"\n[output cut]\n")
        self.left -= len(shown)
        return len(data)


def limit() -> None:
    """Bound this process and those that it starts, and let the server go first."""
    os.nice(10)
    for what, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_NPROC, MOST_PROCESSES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, MOST_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def serve(answer: Callable[[str], None]) -> None:
    """Have each request answered by what `answer` prints, until there are no more."""
    limit()
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = Printed()
    sys.stdout = sys.stderr = io.TextIOWrapper(output, "utf-8", "replace", write_through=True)
    while header := requests.readline():
        mark, num_bytes = header.split()
        asked = requests.read(int(num_bytes)).decode("utf-8", "replace")
        output.left, output.is_cut = OUTPUT_BYTES, False
        answer(asked)
        os.write(1, mark)
