"""The keys of a real terminal, typed while `make serve` runs under a real shell."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from tests import plain

ROOT = Path(__file__).parents[2]
SCRIPTED = ROOT / "tests" / "service" / "serve_scripted.py"
WITHIN_S = 180  # generous: the machine may be busy
PROMPT = "what now? "
CTRL_C, CTRL_Z = "\x03", "\x1a"


class Shell:
    """An interactive bash in a terminal of its own."""

    def __init__(self, programs: Path, environment: dict[str, str]) -> None:
        self.url = ""
        self._make = f"make serve BIN={programs}"
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], os.environ | environment)
        self.process = psutil.Process(self.pid)
        self._shown = ""
        self.read_until(PROMPT)

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def read_until(self, wanted: str) -> str:
        """Read what the terminal shows up to and with `wanted`."""
        deadline = time.monotonic() + WITHIN_S
        while wanted not in self._shown:
            assert time.monotonic() < deadline, f"no {wanted!r} in {self._shown!r}"
            if select.select([self._terminal], [], [], 1)[0]:
                self._shown += os.read(self._terminal, 4096).decode()
        before, _, self._shown = self._shown.partition(wanted)
        return before + wanted

    def serve(self, is_in_background: bool = False) -> None:
        self.type(f"{self._make} &\n" if is_in_background else f"{self._make}\n")
        self.read_until(" http://")
        self.url = "http://" + re.split(r"[^0-9.:\[\]]", self.read_until("\n"))[0]

    def to_foreground(self) -> None:
        self.type("fg\n")
        self.read_until(f"{self._make}\r\n")
        # bash shows this before it gives the terminal away: a key typed in between is bash's own.
        self._wait(lambda: os.tcgetpgrp(self._terminal) != self.pid, "the terminal stays bash's")

    def wait_until_stopped(self) -> None:
        """bash's prompt is back as soon as make has stopped; the others stop a moment later."""
        below = self.process.children(recursive=True)
        ours = [process for process in below if os.getsid(process.pid) == self.pid]
        assert len(ours) >= 3, below  # make, foreground.py and the server
        self._wait(
            lambda: all(process.status() == psutil.STATUS_STOPPED for process in ours),
            f"not all has stopped: {ours}",
        )

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < deadline, otherwise
            time.sleep(0.01)

    def exit_code(self) -> int:
        self.type("echo code=$?.\n")
        self.read_until("code=$?.")  # what was typed
        self.read_until("code=")
        return int(self.read_until(".").rstrip("."))

    def is_live(self) -> bool:
        try:
            return plain.get(f"{self.url}/v1/health/live", timeout=WITHIN_S).status_code == 200
        except httpx2.TransportError:
            return False

    def close(self) -> None:
        """Close the terminal, as a window does."""
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """What `make serve` runs, with the scripted engine: keys do not care who generates."""
    server = f"{SCRIPTED} '{{\"script\": [200002]}}'"
    for name, arguments in (("python", ""), ("harmonium", server)):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.fixture
def shell(programs: Path) -> Iterator[Shell]:
    shell = Shell(programs, {"NIM_SERVER_PORT": "0", "PS1": PROMPT})
    yield shell
    started = shell.process.children(recursive=True) if shell.process.is_running() else []
    shell.close()
    for process in started:
        if process.is_running():
            process.kill()
    os.kill(shell.pid, signal.SIGKILL)
    os.waitpid(shell.pid, 0)


def test_ctrl_z_gives_the_prompt_back_fg_goes_on_and_ctrl_c_drains(shell: Shell) -> None:
    shell.serve()
    shell.type(CTRL_Z)
    assert "Stopped" in shell.read_until(PROMPT)
    shell.wait_until_stopped()
    shell.to_foreground()
    assert shell.is_live()
    shell.type(CTRL_C)
    shown = shell.read_until(PROMPT)
    assert "Finishing running requests." in shown
    assert "Stopped." in shown
    assert shell.exit_code() == 0


@pytest.mark.slow  # few start a server in the background to fetch it back
def test_keys_reach_what_was_started_in_the_background(shell: Shell) -> None:
    shell.serve(is_in_background=True)
    shell.to_foreground()
    shell.type(CTRL_Z)
    assert "Stopped" in shell.read_until(PROMPT)
    shell.wait_until_stopped()
    shell.type("bg\n")
    shell.read_until(PROMPT)
    assert shell.is_live()
    shell.to_foreground()
    shell.type(CTRL_C)
    assert "Stopped." in shell.read_until(PROMPT)


def test_closing_the_terminal_ends_the_server(shell: Shell) -> None:
    shell.serve()
    started = shell.process.children(recursive=True)
    assert len(started) >= 3, started
    shell.close()
    _, alive = psutil.wait_procs(started, timeout=WITHIN_S)
    assert not alive
