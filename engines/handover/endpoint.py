"""The address of an engine that hands K/V over: tcp://ADDRESS:PORT."""

from __future__ import annotations

import re
import socket
from typing import Final

_FORM: Final = re.compile(r"tcp://(?:\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<ipv4>[0-9.]+)):(?P<port>\d+)")

SocketAddress = tuple[socket.AddressFamily, tuple[str, int]]


def socket_address(endpoint: str) -> SocketAddress:
    """Where to bind or connect; raises ValueError for what is no such address."""
    found = _FORM.fullmatch(endpoint)
    if found is None:
        raise ValueError(f"{endpoint!r} is not tcp://ADDRESS:PORT with an IP address")
    port = int(found["port"])
    if found["ipv6"]:
        return socket.AF_INET6, (found["ipv6"], port)
    return socket.AF_INET, (found["ipv4"], port)
