"""The process in which a grammar is compiled for the first time (trial.py starts it).

It reads a grammar a line, as a JSON string, and answers each with why it is refused, or "", and
with the bytes of memory that the compiled grammar takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from engines.errors import InvalidGrammar
from engines.native.grammar.library import STACK, compiled
from engines.native.grammar.vocabulary import tokenizer_of

MAX_MEMORY: Final = 1024**3  # of address space
_NICENESS: Final = 5  # the step loop goes first where cores are few


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its parent
    os.nice(_NICENESS)
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    threading.stack_size(STACK)
    thread = threading.Thread(target=_answer, args=(int(sys.argv[1]),))
    try:
        thread.start()
    except RuntimeError:
        sys.exit(errno.EAGAIN)
    thread.join()


def _answer(vocab_size: int) -> None:
    letters = [bytes([byte]) for byte in range(255)]
    tokenizer = tokenizer_of(letters + [b""] * (vocab_size - len(letters)))
    for line in sys.stdin:
        before, reason = _resident_bytes(), ""
        try:
            matcher = compiled(tokenizer, json.loads(line))
            matcher.compute_bitmask()
            num_bytes = _resident_bytes() - before
            del matcher
        except InvalidGrammar as error:
            reason, num_bytes = str(error), 0
        print(json.dumps([reason, num_bytes]), flush=True)


def _resident_bytes() -> int:
    """Resident memory of this process without freed memory; 0 if the system does not report it."""
    with contextlib.suppress(AttributeError, OSError):  # glibc's alone
        ctypes.CDLL(None).malloc_trim(0)
    try:
        num_pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        return 0
    return num_pages * resource.getpagesize()


if __name__ == "__main__":
    main()
