"""Whole lines on stderr, and what becomes of them where a disk is full."""

from __future__ import annotations

import logging
import os
import sys


def stderr_handler() -> logging.Handler:
    """What writes log lines to stderr."""
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError):  # it is no file
        return logging.StreamHandler(sys.stderr)
    return LineHandler(descriptor)


class LineHandler(logging.Handler):
    """Writes each record at once and as a whole.

    A line that finds no room is lost, as nothing may wait for it; a stream's buffer would keep a
    part of it, and write that into the middle of later lines. The next line that finds room says
    how many were lost.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._num_lost = 0
        self._reason = ""
        self._is_cut = False  # the end of the last line in the log was lost

    def emit(self, record: logging.LogRecord) -> None:
        try:
            lines = [self.format(record)]
            if self._num_lost:
                lines.insert(0, self.format(self._loss()))
        except Exception:
            self.handleError(record)
            return
        start = "\n" if self._is_cut else ""
        self._write((start + "".join(f"{line}\n" for line in lines)).encode(errors="replace"))

    def _write(self, data: bytes) -> None:
        try:
            while data:
                num_written = os.write(self._descriptor, data)
                self._is_cut = data[num_written - 1 : num_written] != b"\n"
                data = data[num_written:]
        except OSError as error:
            self._num_lost += 1
            self._reason = error.strerror or str(error)
        else:
            self._num_lost = 0

    def _loss(self) -> logging.LogRecord:
        text, values = "%d lines of the log were lost: %s", (self._num_lost, self._reason)
        return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, values, None)
