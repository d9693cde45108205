"""API keys from a file or folder that may change while the server runs."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from auth import audit
from auth.base import Credentials, InvalidCredentials, Principal
from auth.detached_thread import run_detached
from auth.key_folder import KeyFolder, KeyStoreError, Signature
from auth.key_record import SCHEMES, KeyRecord, digest, key_id, now

log = logging.getLogger("harmonium")

_NOBODY = bytes(32)  # compared with when the id is unknown, so that both take the same time


class KeyStore:
    """Accepts the keys whose records lie under a path; a change takes effect within a second.

    A file that cannot be read, or is not in time, leaves the keys as they were and is logged; one
    that is gone leaves none.
    """

    def __init__(
        self,
        path: Path,
        *,
        check_every_s: float = 1.0,
        patience_s: float = 2.0,
        clock: Callable[[], datetime] = now,
    ) -> None:
        self._folder = KeyFolder(path)
        self._check_every_s = check_every_s
        self._patience_s = patience_s  # that a request waits for the files
        self._clock = clock
        self._signature: Signature = ()
        self._records: dict[str, KeyRecord] = {}
        self._checked_at = 0.0  # monotonic seconds
        self._checking: asyncio.Task[None] | None = None
        self._is_late = False  # what runs as that

    def load(self) -> None:
        """Read the records for the first time; raises KeyStoreError."""
        self._folder.check()
        self._read()
        self._checked_at = time.monotonic()

    def expiries(self) -> dict[str, float]:
        """When each active key expires, in seconds since 1970; without those that were replaced."""
        newest: dict[str, datetime] = {}
        for record in self._records.values():
            root = record.replaces or record.id
            newest[root] = max(newest.get(root, record.created_at), record.created_at)
        return {
            record.id: record.expires_at.timestamp()
            for record in self._records.values()
            if record.expires_at is not None
            and record.state(self._clock()) == "active"
            and record.created_at == newest[record.replaces or record.id]
        }

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Return the key's principal; None for what is no key of the shape `hmk_...`."""
        id = key_id(credentials.value) if credentials.scheme in SCHEMES else None
        if id is None:
            return None
        await self._refresh()
        record = self._records.get(id)
        known = bytes.fromhex(record.sha256) if record else _NOBODY
        is_right = hmac.compare_digest(digest(credentials.value), known)
        if record is None or not is_right:
            raise InvalidCredentials("no such API key")
        if (state := record.state(self._clock())) != "active":
            raise InvalidCredentials(f"API key {record.id} is {state}")
        return record.principal()

    async def _refresh(self) -> None:
        """Read changed files again, now and then and in a thread.

        They may lie on a slow disk, or one that does not answer, for which the first request waits
        a little and the others do not.
        """
        if self._checking is None:
            if time.monotonic() < self._checked_at + self._check_every_s:
                return
            self._checking = asyncio.create_task(self._check())
        if self._is_late:
            return
        _, pending = await asyncio.wait((self._checking,), timeout=self._patience_s)
        if pending and not self._is_late:
            self._is_late = True
            path, patience_s = self._folder.path, self._patience_s
            log.error("Keeping the previous API keys: %s was not read in %g s", path, patience_s)

    async def _check(self) -> None:
        try:
            await run_detached(self._reread)
        except (KeyStoreError, OSError, RuntimeError) as error:  # the last: no thread to be had
            log.error("Keeping the previous API keys: %s", error)
        finally:
            self._checked_at = time.monotonic()
            self._checking = None
            self._is_late = False

    def _reread(self) -> None:
        if self._folder.signature() != self._signature:
            self._read()

    def _read(self) -> None:
        # The signature is older than the records, never newer: a change in between is seen later.
        signature = self._folder.signature()
        try:
            records = self._folder.read()
        finally:
            self._signature = signature  # a broken file is reported once
        audit.keys_changed(self._records, records)
        self._records = records
