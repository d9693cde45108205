"""This machine's own address: 127.0.0.1, or ::1 where the loopback has no IPv4 (`make ipv6`)."""

from __future__ import annotations

import socket
from http.server import ThreadingHTTPServer
from typing import Final


def _has_ipv4() -> bool:
    try:
        socket.create_server(("127.0.0.1", 0)).close()
    except OSError:
        return False
    return True


HAS_IPV4: Final = _has_ipv4()
ADDRESS: Final = "127.0.0.1" if HAS_IPV4 else "::1"
IN_URL: Final = ADDRESS if HAS_IPV4 else f"[{ADDRESS}]"
FAMILY: Final = socket.AF_INET if HAS_IPV4 else socket.AF_INET6


def listening(port: int = 0) -> socket.socket:
    """A socket that listens."""
    return socket.create_server((ADDRESS, port), family=FAMILY)


def bound() -> socket.socket:
    """A socket that has a free port and does not listen."""
    taken = socket.socket(FAMILY)
    taken.bind((ADDRESS, 0))
    return taken


def free_port() -> int:
    with bound() as taken:
        port: int = taken.getsockname()[1]
        return port


class HttpServer(ThreadingHTTPServer):
    address_family = FAMILY
