"""Where the keys of tokens come from, and how long they are believed when it is silent."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from auth.base import AuthError, InvalidCredentials
from auth.jwk import KeySet, PublicKey

log = logging.getLogger("harmonium")


class KeysUnavailable(AuthError):
    """The keys of tokens cannot be had now: this is our failure, not the caller's."""


class KeySource(Protocol):
    """Finds the key that a token names."""

    async def key(self, id: str | None) -> PublicKey:
        """The key; raises InvalidCredentials when there is none of that id."""
        ...


class OneKey:
    """A key from a file: the id in a token chooses nothing."""

    def __init__(self, key: PublicKey) -> None:
        self._key = key

    async def key(self, id: str | None) -> PublicKey:
        return self._key


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """When keys are fetched."""

    max_age_s: float = 300.0  # then they are fetched anew, while the old ones serve on
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
        """The key of that id; raises InvalidCredentials, or KeysUnavailable without any keys."""
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
            reason = self._found.unfit.get(id, "the provider has none of this id")
            raise InvalidCredentials(f"token: the key {id!r} cannot be used: {reason}")
        return self._found.keys[id]

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
