"""`harmonium serve` as a process, whose log is read as it comes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import plain

PROGRAM = Path(__file__).parents[1] / "serve_scripted.py"
PATIENCE_S = 180  # generous: the machine may be busy
BODY = {"model": "nano", "messages": [{"role": "user", "content": "Hi"}]}


class Serving:
    """A running server; its log is read line by line as it comes."""

    def __init__(
        self, options: dict[str, Any], *flags: str, before: Sequence[str] = (), **environment: str
    ) -> None:
        """`before`: the command that runs the program with the arguments behind it."""
        self.lines: list[str] = []
        self._grown = threading.Condition()
        options_text = json.dumps(options)
        command = [sys.executable, str(PROGRAM), options_text, "serve", "--server-port=0"]
        self.process = subprocess.Popen(
            [*before, *command, *flags],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._grown:
                self.lines.append(line)
                self._grown.notify_all()

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def wait_for(self, text: str) -> str:
        """The first line with the text; fails with the log if the process ends without it."""
        with self._grown:
            self._grown.wait_for(
                lambda: self._find(text) or self.process.poll() is not None, PATIENCE_S
            )
        if self.process.poll() is not None:
            self._reader.join(PATIENCE_S)
        line = self._find(text)
        assert line is not None, f"no {text!r} in:\n{self.log}"
        return line

    def _find(self, text: str) -> str | None:
        return next((line for line in self.lines if text in line), None)

    def end(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(PATIENCE_S)
        assert self.process.stderr is not None
        self.process.stderr.close()

    @property
    def url(self) -> str:
        return self.wait_for("Ready after").split(" on ")[-1].strip()

    def until_ready_is(self, status: int, word: str = "") -> None:
        """Wait for an answer of the readiness probe."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            ready = plain.get(f"{self.url}/v1/health/ready", timeout=PATIENCE_S)
            if ready.status_code == status and word in ready.text:
                return
            assert time.monotonic() < deadline, f"{ready.text}\n{self.log}"
            time.sleep(0.02)

    def exit_code(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code
