"""The socket the API listens on; taken before the engine starts, so that a clash costs nothing."""

from __future__ import annotations

import errno
import resource
import socket
from contextlib import suppress

_SEND_BUFFER_BYTES = 256 * 1024
_OPEN_FILES = 65536
_OPEN_FILES_ANYWHERE = 10240  # what macOS allows where it says "unlimited"
_REASONS = {
    errno.EADDRINUSE: "it is in use; stop the program that uses it, or set NIM_SERVER_PORT",
    errno.EACCES: "this user has no permission; set NIM_SERVER_PORT to 1024 or above",
    errno.EADDRNOTAVAIL: "this machine has no such address; set NIM_SERVER_HOST",
}


class ListenError(Exception):
    """The address cannot be listened on; the message names host, port and the setting."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on host and port; raises ListenError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, f"{error.strerror}; set NIM_SERVER_HOST")
        raise ListenError(f"Cannot listen on {host} port {port}: {reason}.") from error
    # Connections inherit it; the kernel would keep megabytes for a client that does not read.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    return listener


def allow_open_files() -> None:
    """Raise the limit of open files to what the system allows: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, _OPEN_FILES) if hard != resource.RLIM_INFINITY else _OPEN_FILES
    for limit in (wanted, _OPEN_FILES_ANYWHERE):
        if soft == resource.RLIM_INFINITY or soft >= limit:
            return
        with suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return


def url_of(listener: socket.socket) -> str:
    """The URL by which a client on this machine reaches the listener."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
