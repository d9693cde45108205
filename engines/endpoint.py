"""The address of an engine that hands K/V over: tcp://ADDRESS:PORT, IPv6 in brackets."""

from __future__ import annotations

import socket
from ipaddress import ip_address

SocketAddress = tuple[socket.AddressFamily, tuple[str, int]]


def socket_address(endpoint: str) -> SocketAddress:
    """Where to bind or connect; raises ValueError for what is no such address."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    address = ip_address(host.strip("[]"))
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    return family, (str(address), int(port))
