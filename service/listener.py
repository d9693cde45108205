"""The socket the API listens on; taken before the engine starts, so that a clash costs nothing."""

from __future__ import annotations

import errno
import socket

_REASONS = {
    errno.EADDRINUSE: "it is in use; stop the program that has it, or set NIM_SERVER_PORT",
    errno.EACCES: "this user may not take it; set NIM_SERVER_PORT to 1024 or above",
    errno.EADDRNOTAVAIL: "this machine does not have the address; set NIM_SERVER_HOST",
}


class ListenError(Exception):
    """The address cannot be listened on; the message names host, port and the setting."""


def listen(host: str, port: int) -> socket.socket:
    """Take host and port; raises ListenError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, f"{error.strerror}; set NIM_SERVER_HOST")
        raise ListenError(f"Cannot listen on {host} port {port}: {reason}.") from error


def url_of(listener: socket.socket) -> str:
    """Where a client on this machine reaches it."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
