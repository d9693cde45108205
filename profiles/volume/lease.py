"""One process at a time, of any host: a lease in a file, which needs no locks of the volume."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LEASE_S: Final = 30.0  # an owner that has not been seen for so long is gone
_WAIT_TOLD_AFTER_S, _WAIT_TOLD_EVERY_S = 1.0, 30.0


@contextmanager
def leased(file: Path, tell_waiting: Callable[[], None]) -> Iterator[threading.Event]:
    """Hold the lease; the event says that another took it over, as this process was silent.

    A lease is refreshed while its owner lives, on file systems without locks too, and is taken
    over when it has not been for LEASE_S, by the watcher's clock. `tell_waiting` is called now and
    then while another holds it.
    """
    from filelock import SoftFileLease, Timeout  # few starts need it

    lost = threading.Event()
    lease = SoftFileLease(
        file,
        lease_duration=LEASE_S,
        heartbeat_interval=LEASE_S / 6,
        on_compromise=lambda _: lost.set(),
    )
    patience_s = _WAIT_TOLD_AFTER_S
    while True:
        try:
            lease.acquire(timeout=patience_s)
            break
        except Timeout:
            patience_s = _WAIT_TOLD_EVERY_S
            tell_waiting()
    try:
        yield lost
    finally:
        lease.release()
