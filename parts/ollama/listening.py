"""Ollama's port, on which each API worker listens for itself."""

from __future__ import annotations

import socket
from typing import Final

from profiles.errors import InvalidConstraint
from service.run.listener import EVERYWHERE, ListenError

_BACKLOG: Final = 2048


def listen_beside(host: str, port: int) -> socket.socket:
    """A socket that shares its port with those of the other workers; raises ListenError."""
    try:
        return _bound(host, port, is_shared=True)
    except OSError as error:
        raise ListenError(_fault(host, port, error)) from error


def check_free(host: str, port: int) -> None:
    """Raise InvalidConstraint where another program has the port."""
    try:
        _bound(host, port, is_shared=False).close()
    except OSError as error:
        raise InvalidConstraint(_fault(host, port, error)) from error


def _fault(host: str, port: int, error: OSError) -> str:
    return (
        f"Cannot listen on {host} port {port} for Ollama's clients: {error.strerror}; stop the "
        "program that uses it (Ollama?), or set NIM_OLLAMA_PORT to another port."
    )


def _bound(host: str, port: int, *, is_shared: bool) -> socket.socket:
    is_dual = host == EVERYWHERE and socket.has_dualstack_ipv6()
    if host == EVERYWHERE and not is_dual:
        host = "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server(
        (host, port),
        family=family,
        dualstack_ipv6=is_dual,
        backlog=_BACKLOG,
        reuse_port=is_shared,
    )
