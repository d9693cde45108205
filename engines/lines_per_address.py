"""Log lines that anyone can cause who reaches a port, bounded for each address."""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

NUM_FREE: Final = 20  # lines of one address at once
INTERVAL_S: Final = 6.0  # then one each so often
_MOST_ADDRESSES: Final = 10_000
_NETWORK_BITS: Final = 64  # a client with one IPv6 address has as many


class LinesPerAddress:
    """Of each address the first lines are logged, then one in a while with the number left out.

    In any thread.
    """

    def __init__(
        self,
        num_free: int = NUM_FREE,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_free, self._interval_s, self._clock = num_free, interval_s, clock
        self._lock = threading.Lock()
        # Lines that still count, when that was, and how many were left out since the last one.
        self._of: OrderedDict[str, tuple[float, float, int]] = OrderedDict()

    def take(self, address: str) -> int | None:
        """How many lines were left out before this one, which is to be told; None: leave it out,
        too."""
        network, now_s = _network(address), self._clock()
        with self._lock:
            level, at_s, num_left_out = self._of.pop(network, (0.0, now_s, 0))
            level = max(0.0, level - (now_s - at_s) / self._interval_s)
            is_told = level + 1 <= self._num_free
            self._of[network] = (level + is_told, now_s, 0 if is_told else num_left_out + 1)
            if len(self._of) > _MOST_ADDRESSES:
                self._of.popitem(last=False)
        return num_left_out if is_told else None

    def warning(self, log: logging.Logger, address: str, message: str, *args: object) -> None:
        """Write a warning that this address has caused, unless it has caused many."""
        num_left_out = self.take(address)
        if num_left_out is not None:
            log.warning(message + "%s", *args, left_out(num_left_out))


def left_out(num: int) -> str:
    """What a line says of those before it."""
    return f" ({num} more such lines were left out)" if num else ""


def _network(address: str) -> str:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is None:
        return str(ipaddress.ip_network((ip, _NETWORK_BITS), strict=False))
    return str(getattr(ip, "ipv4_mapped", None) or ip)
