"""Reads pages of the public web, and of nothing else.

A host is resolved once; all its addresses must be public, and the connection goes to one of them,
so that a name that changes its address between check and use gains nothing. Each redirect is
checked like a first address.
"""

from __future__ import annotations

import http.client
import signal
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import SplitResult, quote, urljoin, urlsplit

PORTS = (80, 443)
MOST_BYTES = 2 << 20  # of a page
MOST_REDIRECTS = 5
READ_S = 20  # a page, with its redirects
_AGENT = "Mozilla/5.0 (compatible; Harmonium)"
_TEXTS = ("text/", "application/json", "application/xhtml+xml", "application/xml")
_REDIRECTS = (301, 302, 303, 307, 308)
_PIECE_BYTES = 64 << 10
_SAFE = "/:?#[]@!$&'()*+,;=%~"  # of a URL, as it is

# What `is_global` lets pass, and no page is at: the address at which Azure answers its machines,
# IPv4 inside IPv6, and special purposes.
_V4 = ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")
_V6 = ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
_REFUSED = tuple(map(ip_network, (*_V4, *_V6)))
_PUBLIC_V6 = ip_network("2000::/3")


class CannotRead(Exception):
    """A page that cannot be read; the text tells the model why."""


@dataclass(frozen=True)
class PageRequest:
    """A request: of the public web, or of the operator's search service."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None  # sent by POST
    is_trusted: bool = False  # the operator's: at any address, and not redirected


@dataclass(frozen=True)
class Answered:
    """What was read, and from where."""

    url: str
    text: str
    is_html: bool


def is_public(address: str) -> bool:
    """Whether an address is one of the public Internet."""
    found: IPv4Address | IPv6Address = ip_address(address)
    if isinstance(found, IPv6Address) and found not in _PUBLIC_V6:
        return False
    is_refused = any(found in network for network in _REFUSED)
    return found.is_global and not found.is_multicast and not is_refused


def read(wanted: PageRequest) -> Answered:
    """Read a page; raises CannotRead."""
    url = wanted.url
    with _within(READ_S):
        for _ in range(MOST_REDIRECTS + 1):
            try:
                found = _read_once(wanted, url)
            except (http.client.HTTPException, OSError) as error:
                raise CannotRead(f"{_name(wanted, url)} cannot be read ({_said(error)})") from None
            if isinstance(found, Answered):
                return found
            if wanted.is_trusted:
                raise CannotRead("the search service redirects, which is not followed")
            url = found
    raise CannotRead(f"{_shown(wanted.url)} redirects more than {MOST_REDIRECTS} times")


def _read_once(wanted: PageRequest, url: str) -> Answered | str:
    """The page, or where it is instead."""
    parts = _parts(url)
    url = parts.geturl()
    with _Connection(parts, _address(parts, is_trusted=wanted.is_trusted)) as connection:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(
            "GET" if wanted.body is None else "POST",
            target,
            wanted.body,
            {"user-agent": _AGENT, "accept-encoding": "identity", **wanted.headers},
        )
        answer = connection.getresponse()
        if answer.status in _REDIRECTS and (location := answer.headers["location"]):
            return urljoin(url, str(location).strip())
        if answer.status != 200:
            raise CannotRead(f"{_name(wanted, url)} answers {answer.status}")
        return Answered(
            url, _text(answer, _name(wanted, url)), "html" in answer.headers.get_content_type()
        )


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise CannotRead(f"{_shown(url)} is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CannotRead(f"{_shown(url)} is not a URL of http or https")
    if parts.username is not None:
        raise CannotRead("a URL with a user or a password is not opened")
    if port == 0:
        raise CannotRead(f"{_shown(url)} has port 0")
    path, query = quote(parts.path, safe=_SAFE), quote(parts.query, safe=_SAFE)
    return parts._replace(path=path, query=query, fragment="")


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _address(parts: SplitResult, *, is_trusted: bool) -> str:
    """The address of a host, resolved once; raises CannotRead."""
    host, port = parts.hostname or "", _port(parts)
    if not is_trusted and port not in PORTS:
        raise CannotRead(f"port {port} is not opened, only {' and '.join(map(str, PORTS))}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise CannotRead(f"the host {host[:200]} is not found") from None
    addresses = [str(each[4][0]) for each in found]
    if not is_trusted and not all(map(is_public, addresses)):
        raise CannotRead(f"the host {host[:200]} is not on the public web")
    return addresses[0]


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


class _Connection(http.client.HTTPConnection):
    """A connection to one address, whatever the host's name is by now."""

    def __init__(self, parts: SplitResult, address: str) -> None:
        super().__init__(parts.hostname or "", _port(parts), timeout=READ_S)
        self._address = address
        self._is_tls = parts.scheme == "https"
        self.default_port = 443 if self._is_tls else 80  # where Host has no port

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        self.sock: Any = socket.create_connection((self._address, self.port), self.timeout)
        if self._is_tls:
            self.sock = _tls().wrap_socket(self.sock, server_hostname=self.host)


def _text(answer: http.client.HTTPResponse, name: str) -> str:
    kind = answer.headers.get_content_type()
    if not kind.startswith(_TEXTS) and not kind.endswith(("+xml", "+json")):
        raise CannotRead(f"{name} is {kind[:100]}, not text")
    if (coding := answer.headers.get("content-encoding", "identity")) != "identity":
        raise CannotRead(f"{name} is compressed ({coding[:20]}), which was not asked for")
    raw = bytearray()
    while len(raw) < MOST_BYTES and (piece := answer.read(_PIECE_BYTES)):
        raw += piece
    charset = answer.headers.get_content_charset() or "utf-8"
    try:
        return raw[:MOST_BYTES].decode(charset, "replace")
    except (LookupError, ValueError):  # an unknown charset, or one that replaces nothing: idna
        return raw[:MOST_BYTES].decode("utf-8", "replace")


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    """Have the block raise CannotRead after a time, however slowly a server sends."""

    def late(*_: object) -> None:
        raise CannotRead(f"the page was not read within {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _name(wanted: PageRequest, url: str) -> str:
    """What is read, for a message; the operator's address is not told."""
    return "the search service" if wanted.is_trusted else _shown(url)


def _shown(url: str) -> str:
    """A URL in a message: one line, and not a long one."""
    return "".join(letter for letter in url[:300] if letter.isprintable())


def _said(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return _shown(str(text))
