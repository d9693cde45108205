"""Which addresses mean this machine, and which URLs can be believed."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def check_url(url: str) -> None:
    """Raise ValueError unless the answer can be believed: https, or this machine itself."""
    parts = urlsplit(url)
    schemes = ("https", "http") if is_loopback(parts.hostname or "") else ("https",)
    if not parts.hostname or parts.scheme not in schemes:
        raise ValueError(f"{url[:200]} must be an https URL (http for loopback only)")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address; a name other than localhost is not."""
    try:
        return host == "localhost" or ipaddress.ip_address(plain_address(host)).is_loopback
    except ValueError:
        return False


def plain_address(host: str) -> str:
    """An IPv4 address as such, which a socket of both families shows as `::ffff:192.0.2.1`."""
    prefix, _, rest = host.rpartition(":")
    return rest if prefix.lower() == "::ffff" and "." in rest else host
