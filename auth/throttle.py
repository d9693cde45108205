"""Wrong credentials are counted and slowed per address; right ones never wait.

Each address may fail a few times at once and then once in a while. Above that, what could be
guessed is refused without a look, unless it was accepted from there before. Made keys and tokens
cannot be guessed: they are looked at always, so that no caller who shares an address with an
attacker
is shut out. Memory is bounded, whatever comes.
"""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from auth.base import AuthError, Credentials
from auth.key_record import SCHEMES, key_id

RETRY_S = 2.0
_REASON = "too many wrong credentials from this address"


class TooManyFailures(AuthError):
    """The address has presented wrong credentials too often of late."""


@dataclass(frozen=True, slots=True)
class ThrottlePolicy:
    """How often an address may fail."""

    num_free: int = 10  # at once
    interval_s: float = RETRY_S  # then one per this many seconds
    max_addresses: int = 10_000
    max_accepted: int = 10_000


class Throttle:
    """Counts failed credentials by address, in one process."""

    def __init__(
        self, policy: ThrottlePolicy | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._policy = policy or ThrottlePolicy()
        self._clock = clock
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()  # level, when
        self._accepted: OrderedDict[bytes, None] = OrderedDict()

    def check(self, address: str, credentials: Credentials) -> None:
        """Raise TooManyFailures for a guess from an address over its bound."""
        is_over = self._level(_group(address)) + 1 > self._policy.num_free
        if not is_over or not _is_guessable(credentials):
            return
        if _fingerprint(address, credentials) not in self._accepted:
            raise TooManyFailures(_REASON)

    def accepted(self, address: str, credentials: Credentials) -> None:
        """Remember credentials that were right: they are no guess from now on."""
        fingerprint = _fingerprint(address, credentials)
        self._accepted[fingerprint] = None
        self._accepted.move_to_end(fingerprint)
        if len(self._accepted) > self._policy.max_accepted:
            self._accepted.popitem(last=False)

    def failed(self, address: str) -> None:
        """Count a failure; raises TooManyFailures if the address was over its bound before."""
        group, most = _group(address), float(self._policy.num_free)
        level = self._level(group) + 1
        self._failures[group] = (min(level, most), self._clock())
        self._failures.move_to_end(group)
        if len(self._failures) > self._policy.max_addresses:
            self._failures.popitem(last=False)
        if level > most:
            raise TooManyFailures(_REASON)

    def _level(self, group: str) -> float:
        """Return the number of failures that still count: one is forgiven each interval."""
        level, at = self._failures.get(group, (0.0, 0.0))
        return max(0.0, level - (self._clock() - at) / self._policy.interval_s)


def _is_guessable(credentials: Credentials) -> bool:
    """Return whether an operator may have made the text up: fixed keys are any text."""
    is_text = credentials.scheme in SCHEMES
    return is_text and key_id(credentials.value) is None and not credentials.is_token


def _group(address: str) -> str:
    """Return the key of an address's count: a client with one IPv6 address has its whole /64."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is None:
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)


def _fingerprint(address: str, credentials: Credentials) -> bytes:
    text = f"{_group(address)} {credentials.value}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
