"""The form of an endpoint that others connect to: tcp://ADDRESS:PORT."""

from __future__ import annotations

import re
from ipaddress import ip_address

# Kubernetes writes a pod's IPv6 address without brackets: tcp://$(POD_IP):5557.
_ENDPOINT = re.compile(
    r"tcp://(?:\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<bare>[0-9a-fA-F]*:[0-9a-fA-F:.]+)|(?P<ipv4>[0-9.]+))"
    r":(?P<port>\d+)"
)


def checked_endpoint(value: str) -> str:
    """The endpoint, an IPv6 address in brackets; raises ValueError unless it names one IP address
    and a port."""
    found = _ENDPOINT.fullmatch(value)
    if found is None:
        raise ValueError("write tcp://ADDRESS:PORT with an IP address; IPv6 as tcp://[::1]:5557")
    address = ip_address(found["ipv6"] or found["bare"] or found["ipv4"])
    if (getattr(address, "ipv4_mapped", None) or address).is_unspecified:
        raise ValueError("this is every address of the machine; name one of them")
    if not 1 <= int(found["port"]) <= 65535:
        raise ValueError("the port must be 1 to 65535")
    return f"tcp://[{found['bare']}]:{found['port']}" if found["bare"] else value
