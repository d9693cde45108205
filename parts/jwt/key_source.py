"""Where the keys of tokens come from, and how they are fetched, how long they are believed."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx2
import msgspec

from auth.address import check_url, is_loopback
from auth.base import InvalidCredentials, KeysUnavailable
from parts.jwt.jwk import KeySet, PublicKey, keys_of

log = logging.getLogger("harmonium")

MAX_BYTES = 256 * 1024
TIMEOUT_S = 2.0  # for one whole answer, however it trickles
_DISCOVERY = "/.well-known/openid-configuration"
# No compression: a small answer must not unfold into a large one.
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}


class KeySource(Protocol):
    """Finds the key that a token names."""

    async def key(self, id: str | None) -> PublicKey:
        """The key that a token names; raises InvalidCredentials when there is none of that id."""

    async def newer(self, id: str | None, key: PublicKey) -> PublicKey | None:
        """The key that has taken the place of `key` under its id; None when none is known."""


class OneKey:
    """A key from a file: the id in a token chooses nothing."""

    def __init__(self, key: PublicKey) -> None:
        self._key = key

    async def key(self, id: str | None) -> PublicKey:
        return self._key

    async def newer(self, id: str | None, key: PublicKey) -> None:
        """None: a file is read once."""


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """When keys are fetched again, and how long old ones are believed."""

    max_age_s: float = 300.0  # then they are fetched again, while the old ones stay in use
    max_stale_s: float = 6 * 3600.0  # then they are believed no more
    cooldown_s: float = 15.0  # between two fetches, whatever tokens ask for
    patience_s: float = 5.0  # that a request waits for a fetch


class FetchedKeys:
    """The keys of an identity provider, kept while it is slow, down or being asked.

    Fetches run one at a time and one in a cool-down, failed ones included: no flood of made-up
    key ids reaches the provider.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[KeySet]],
        policy: CachePolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._policy = policy or CachePolicy()
        self._clock = clock
        self._found = KeySet({})
        self._fetched_at = -math.inf
        self._tried_at = -math.inf
        self._fetching: asyncio.Task[None] | None = None

    async def key(self, id: str | None) -> PublicKey:
        """The key of that id; raises InvalidCredentials, or KeysUnavailable while none is known."""
        if id is None:
            raise InvalidCredentials("token: its header has no kid")
        age_s = self._clock() - self._fetched_at
        if age_s > self._policy.max_stale_s or id not in self._found.keys:
            await self._refreshed()
        elif age_s > self._policy.max_age_s:
            self._start()
        if self._clock() - self._fetched_at > self._policy.max_stale_s:
            raise KeysUnavailable("the keys of tokens cannot be fetched")
        if id not in self._found.keys:
            reason = self._found.unfit.get(id, "the provider has no key with this id")
            raise InvalidCredentials(f"token: the key {id!r} cannot be used: {reason}")
        return self._found.keys[id]

    async def newer(self, id: str | None, key: PublicKey) -> PublicKey | None:
        """What the provider has now in the place of a key that did not sign a token; else None.

        Any client can send such tokens: they share the one fetch in a cool-down with made-up ids.
        """
        if id is None or self._found.keys.get(id) == key:
            await self._refreshed()
        found = self._found.keys.get(id) if id is not None else None
        return found if found != key else None

    async def _refreshed(self) -> None:
        fetching = self._start()
        if fetching is not None:
            await asyncio.wait((fetching,), timeout=self._policy.patience_s)

    def _start(self) -> asyncio.Task[None] | None:
        """The fetch that runs, or a new one unless it is too soon."""
        if self._fetching is None:
            if self._clock() < self._tried_at + self._policy.cooldown_s:
                return None
            self._fetching = asyncio.create_task(self._run())
        return self._fetching

    async def _run(self) -> None:
        try:
            self._found = await self._fetch()
            self._fetched_at = self._clock()
        except (OSError, ValueError) as error:
            log.error("The keys of tokens cannot be fetched: %s", error)
        finally:
            self._tried_at = self._clock()
            self._fetching = None


async def fetch_keys(url: str) -> KeySet:
    """Fetch the keys at a JWKS URL (RFC 7517); raises OSError or ValueError."""
    found = keys_of(await get_json(url))
    if not found.keys:
        raise ValueError(f"{url} has no key that is fit to verify tokens: {dict(found.unfit)}")
    return found


async def discover_keys(issuer: str) -> KeySet:
    """Fetch the keys that an issuer's discovery document names; raises OSError or ValueError."""
    url = issuer.rstrip("/") + _DISCOVERY
    document = await get_json(url)
    if not isinstance(document, dict) or document.get("issuer") != issuer:
        raise ValueError(f"{url} is not the discovery document of the issuer {issuer}")
    return await fetch_keys(str(document.get("jwks_uri")))


async def get_json(url: str) -> Any:
    """Fetch the JSON at a URL: no redirects, 256 KiB, 2 s at most; raises OSError or ValueError."""
    check_url(url)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return msgspec.json.decode(await _body(url))
    except TimeoutError:
        raise TimeoutError(
            f"{url} did not send a complete response within {TIMEOUT_S:g} s"
        ) from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise OSError(f"{url} cannot be reached: {type(error).__name__} {error}") from None
    except RecursionError:
        raise ValueError(f"{url} returned JSON that is nested too deep") from None


async def _body(url: str) -> bytes:
    # The system's authorities, which take a while to read; a proxy has no business with loopback.
    trust = await asyncio.to_thread(ssl.create_default_context)
    is_local = is_loopback(urlsplit(url).hostname or "")
    async with (
        httpx2.AsyncClient(verify=trust, trust_env=not is_local, timeout=TIMEOUT_S) as client,
        client.stream("GET", url, headers=_HEADERS) as response,
    ):
        if response.status_code != 200:
            raise OSError(f"{url} returned status {response.status_code}")
        body = b""
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_BYTES:
                raise ValueError(f"the answer is larger than {MAX_BYTES} bytes")
        return body
