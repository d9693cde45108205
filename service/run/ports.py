"""Addresses of replicas: each uses the next port."""

from __future__ import annotations

from typing import Final

MOST_PORT: Final = 65535


def of_replica(endpoint: str, number: int) -> str:
    address, port = split(endpoint)
    return f"{address}:{port + number}"


def split(endpoint: str) -> tuple[str, int]:
    address, _, port = endpoint.rpartition(":")
    return address, int(port)
