"""Whole lines on stderr, and what becomes of them where a disk is full or does not answer."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from typing import Final

MOST_WAITING: Final = 1 << 20  # bytes of lines
END_S: Final = 2.0  # for the lines that wait when the process ends


def stderr_handler() -> logging.Handler:
    """What writes log lines to stderr."""
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError):  # it is no file
        return logging.StreamHandler(sys.stderr)
    return LineHandler(descriptor)


class LineHandler(logging.Handler):
    """Has a thread write each record as a whole: nothing waits for the disk, or for who reads the
    pipe.

    A line that finds no room is lost; a stream's buffer would keep a part of it, and write that
    into the middle of later lines. The next line that finds room says how many were lost.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._is_cut = False  # the end of the last line in the log was lost
        self._changed = threading.Condition()  # of what follows
        self._waiting: deque[bytes] = deque()  # the first one is being written
        self._num_waiting = 0  # bytes
        self._num_lost = 0
        self._reason = ""
        self._is_threaded = True
        try:
            threading.Thread(target=self._write_all, name="log", daemon=True).start()
        except RuntimeError:  # the system starts no more of them
            self._is_threaded = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode(errors="replace")
        except Exception:
            self.handleError(record)
            return
        if not self._is_threaded:
            self._write(line)
            return
        with self._changed:
            if self._num_waiting + len(line) > MOST_WAITING:
                self._lose("they were not taken in time")
                return
            self._waiting.append(line)
            self._num_waiting += len(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all is written, but not for ever; called at the end of the process."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, END_S)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                line = self._waiting[0]
            self._write(line)
            with self._changed:
                self._waiting.popleft()
                self._num_waiting -= len(line)
                self._changed.notify_all()

    def _write(self, line: bytes) -> None:
        with self._changed:
            num_lost = self._num_lost
            loss = f"{self.format(self._loss())}\n".encode() if num_lost else b""
        # Also after a loss: another process, killed meanwhile, may have left its own line cut.
        data = (b"\n" if self._is_cut or loss else b"") + loss + line
        try:
            while data:
                num_written = os.write(self._descriptor, data)
                self._is_cut = data[num_written - 1 : num_written] != b"\n"
                data = data[num_written:]
        except OSError as error:
            with self._changed:
                self._lose(error.strerror or str(error))
        else:
            with self._changed:
                self._num_lost -= num_lost

    def _lose(self, reason: str) -> None:
        self._num_lost += 1
        self._reason = reason

    def _loss(self) -> logging.LogRecord:
        text, values = "%d lines of the log were lost: %s", (self._num_lost, self._reason)
        return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, values, None)
