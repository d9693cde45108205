"""What a measuring program has started ends with it."""

from __future__ import annotations

import signal


def end_as_by_ctrl_c() -> None:
    """Let SIGTERM, which a time limit sends, unwind the program as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
