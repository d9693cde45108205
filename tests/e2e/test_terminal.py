"""Ctrl-C in a real terminal, after `make serve`."""

from __future__ import annotations

import os
import pty
import select
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
WITHIN_S = 60


def read_until(terminal: int, wanted: bytes) -> bytes:
    """Read what the terminal shows until it shows `wanted`, or until the program ends."""
    shown, deadline = b"", time.monotonic() + WITHIN_S
    while wanted not in shown:
        assert time.monotonic() < deadline, shown
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # how Linux says that the other side is gone
            break
    return shown


def test_ctrl_c_drains_and_make_exits_0(free_port: Callable[[], int], cache_dir: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.environ["NIM_SERVER_PORT"] = str(free_port())
        os.environ["NIM_CACHE_PATH"] = str(cache_dir)
        os.chdir(ROOT)
        os.execvp("make", ["make", "serve"])
    assert b"curl" in read_until(terminal, b"/v1/chat/completions")
    os.write(terminal, b"\x03")
    rest = read_until(terminal, b"never shown: read to the end")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, rest
    os.close(terminal)
