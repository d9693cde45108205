"""`harmonium serve` on nano, in a terminal of its own, for as long as a picture needs it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import socket
import struct
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

COLUMNS, LINES = 104, 40
CACHE = Path(tempfile.gettempdir()) / "harmonium"  # a short path: it is shown
GIVE_UP_AFTER_S = 300
_READY = re.compile(r"In a browser: (http://\S+?)(?:\x1b|\s)")


@contextmanager
def serving(port: int = 8000, more: Mapping[str, str] | None = None) -> Iterator[tuple[str, str]]:
    """Serve until the block ends; yield the URL and what the terminal showed, colours and all."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NIM_")}
    environment |= {
        "NIM_SERVER_PORT": str(port),
        "NIM_CACHE_PATH": str(CACHE),
        "NIM_MODEL_NAME": "nano",
        "TERM": "xterm-256color",
        **(more or {}),
    }
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("harmonium", ["harmonium", "serve"], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    shown: list[str] = []
    reader = threading.Thread(target=read, args=(terminal, shown))
    reader.start()
    try:
        give_up_at = time.monotonic() + GIVE_UP_AFTER_S
        while not (ready := _READY.search("".join(shown))):
            if not reader.is_alive() or time.monotonic() > give_up_at:
                raise RuntimeError(f"never ready:\n{''.join(shown)}")
            time.sleep(0.1)
        yield ready[1], ready.string
    finally:
        os.kill(pid, signal.SIGINT)
        os.waitpid(pid, 0)
        reader.join()
        os.close(terminal)


def read(terminal: int, shown: list[str]) -> None:
    """Keep what a terminal shows, to its end: a full one would hold the program up."""
    while True:
        try:
            shown.append(os.read(terminal, 65536).decode(errors="replace"))
        except OSError:
            return


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
