"""`harmonium serve` on nano, in a terminal of its own, for as long as a picture needs it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COLUMNS, LINES = 104, 40
CACHE = Path(tempfile.gettempdir()) / "harmonium"  # a short path: it is shown
GIVE_UP_AFTER_S = 300
_READY = re.compile(r"serving nano on (http://\S+?)(?:\x1b|\s)[\s\S]*Try it [^\n]*\s+curl [^\n]*\n")


@contextmanager
def serving(port: int = 8000) -> Iterator[tuple[str, str]]:
    """Serve until the block ends; yield the URL and what the terminal showed, colours and all."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NIM_")}
    environment |= {
        "NIM_SERVER_PORT": str(port),
        "NIM_CACHE_PATH": str(CACHE),
        "NIM_MODEL_NAME": "nano",
        "TERM": "xterm-256color",
    }
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("harmonium", ["harmonium", "serve"], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    try:
        shown = ""
        give_up_at = time.monotonic() + GIVE_UP_AFTER_S
        while not (ready := _READY.search(shown)):
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"never ready:\n{shown}")
            if select.select([terminal], [], [], 1)[0]:
                shown += os.read(terminal, 65536).decode()
        yield ready[1], shown
    finally:
        os.kill(pid, signal.SIGINT)
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    os.read(terminal, 65536)  # the access log: a full terminal holds a program up
                except OSError:
                    time.sleep(0.1)
        os.close(terminal)
