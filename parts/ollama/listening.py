"""Ollama's port, on which each API worker listens for itself."""

from __future__ import annotations

import socket

from profiles.errors import InvalidConstraint
from service.run.listener import ListenError, server_socket


def listen_beside(host: str, port: int) -> socket.socket:
    """A socket that shares its port with those of the other workers; raises ListenError."""
    try:
        return server_socket(host, port, is_shared=True)
    except OSError as error:
        raise ListenError(_fault(host, port, error)) from error


def check_free(host: str, port: int) -> None:
    """Raise InvalidConstraint where another program has the port."""
    try:
        server_socket(host, port).close()
    except OSError as error:
        raise InvalidConstraint(_fault(host, port, error)) from error


def _fault(host: str, port: int, error: OSError) -> str:
    return (
        f"Cannot listen on {host} port {port} for Ollama's clients: {error.strerror}; stop the "
        "program that uses it (Ollama?), or set NIM_OLLAMA_PORT to another port."
    )
