"""The socket the API listens on; taken before the engine starts, so that a clash costs nothing."""

from __future__ import annotations

import errno
import resource
import socket
from contextlib import suppress
from typing import Final

EVERYWHERE: Final = "::"  # every address of the machine, of both families where it has them
_LOOPBACK: Final = "127.0.0.1"
_BACKLOG: Final = 2048
_SEND_BUFFER_BYTES = 256 * 1024
_OPEN_FILES = 65536
_OPEN_FILES_ANYWHERE = 10240  # what macOS allows where it says "unlimited"
_REASONS = {
    errno.EACCES: "this user has no permission; set NIM_SERVER_PORT to 1024 or above",
    errno.EADDRNOTAVAIL: "this machine has no such address; set NIM_SERVER_HOST",
}


class ListenError(Exception):
    """The address cannot be listened on; the message names host, port and the setting."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on host and port; raises ListenError."""
    try:
        listener = server_socket(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ListenError(
                f"Port {port} of {host} is in use. "
                f"Try `harmonium serve --port {_free(host, port)}`, or set NIM_SERVER_PORT."
            ) from error
        reason = _REASONS.get(error.errno or 0, f"{error.strerror}; set NIM_SERVER_HOST")
        raise ListenError(f"Cannot listen on {host} port {port}: {reason}.") from error
    # Connections inherit it; the kernel would keep megabytes for a client that does not read.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    return listener


def _free(host: str, taken: int) -> int:
    """The next port that is free."""
    for port in range(taken + 1, min(taken + 100, 65536)):
        with suppress(OSError), server_socket(host, port):
            return port
    return 0  # the system chooses one


def server_socket(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """A socket that listens; raises OSError."""
    is_dual = host == EVERYWHERE and socket.has_dualstack_ipv6()
    if host == EVERYWHERE and not is_dual:  # a kernel without IPv6
        host = "0.0.0.0"
    if host == _LOOPBACK:
        host = _loopback()
    return socket.create_server(
        (host, port),
        family=socket.AF_INET6 if ":" in host else socket.AF_INET,
        dualstack_ipv6=is_dual,
        backlog=_BACKLOG,
        reuse_port=is_shared,
    )


def _loopback() -> str:
    """127.0.0.1, or ::1 where the loopback has no IPv4."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((_LOOPBACK, 0))
    except OSError:
        return "::1"
    return _LOOPBACK


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
    host = _loopback() if host in ("0.0.0.0", EVERYWHERE) else host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
