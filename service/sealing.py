"""Texts that a client keeps for us: encrypted, so that only this server and its replicas read them,
and bound to the tenant and to what they are, so that no other text passes for one.

Keys come from a secret that replicas share, or are made once and kept in their common database.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from sqlite3 import Connection
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from service.store.sqlite import Database, SqliteDatabase

_VERSION: Final = "hs1."
_ID_BYTES: Final = 4  # of a key
_NONCE_BYTES: Final = 12
_NAME: Final = "sealing"
_TABLE: Final = "CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);"
_KEEP: Final = "redis.call('SET', KEYS[1], ARGV[1], 'NX') return redis.call('GET', KEYS[1])"


class NotSealed(Exception):
    """A text that was not sealed here, not for this tenant or purpose, or was altered."""


class Seals:
    """Seals and opens texts; AES-GCM, with the id of the key in front."""

    def __init__(self, database: Database, given: Sequence[str] = ()) -> None:
        """`given`: secrets that replicas share; the first seals, all open. None: the database's."""
        self._database = database
        self._keys = [_derived(secret.encode()) for secret in given]
        if isinstance(database, SqliteDatabase) and not given:
            database.add_tables(_TABLE)

    async def seal(self, purpose: str, tenant: str, text: str) -> str:
        """The text, to be opened for the same purpose and tenant; raises StoreError."""
        key = (await self._all_keys())[0]
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(key).encrypt(nonce, text.encode(), _bound(purpose, tenant))
        return _written(key, nonce, sealed)

    async def sealer(self, purpose: str, tenant: str) -> Callable[[str], str]:
        """What seals texts at once, and the same text always alike; raises StoreError.

        The nonce is a digest of the text by a key of its own, so that none is used for two texts.
        """
        key = (await self._all_keys())[0]
        digest_key = hashlib.sha256(b"nonce" + key).digest()
        bound = _bound(purpose, tenant)

        def seal(text: str) -> str:
            data = text.encode()
            nonce = hmac.digest(digest_key, bound + b"\0" + data, "sha256")[:_NONCE_BYTES]
            return _written(key, nonce, AESGCM(key).encrypt(nonce, data, bound))

        return seal

    async def open(self, purpose: str, tenant: str, sealed: str) -> str:
        """What was sealed; raises NotSealed, or StoreError."""
        if not is_sealed(sealed):
            raise NotSealed("it was not made by this server")
        try:
            data = base64.urlsafe_b64decode(sealed[len(_VERSION) :])
        except (binascii.Error, ValueError):
            raise NotSealed("it was altered") from None
        id, nonce = data[:_ID_BYTES], data[_ID_BYTES : _ID_BYTES + _NONCE_BYTES]
        for key in await self._all_keys():
            if _id_of(key) == id:
                return _opened(key, nonce, data[_ID_BYTES + _NONCE_BYTES :], purpose, tenant)
        raise NotSealed("its key is not known here")

    async def _all_keys(self) -> list[bytes]:
        if not self._keys:
            self._keys = [_derived(await self._kept())]
        return self._keys

    async def _kept(self) -> bytes:
        """The secret in the database, made by the first that asks for it."""
        new = secrets.token_hex(32)
        if isinstance(self._database, SqliteDatabase):
            return await self._database.run(_keep, new)
        kept = await self._database.call(_KEEP, ["harmonium:{secrets}:sealing"], [new])
        return kept if isinstance(kept, bytes) else str(kept).encode()


def is_sealed(text: str) -> bool:
    """Whether a text looks as if it was sealed by a server like this one."""
    return text.startswith(_VERSION)


def _written(key: bytes, nonce: bytes, sealed: bytes) -> str:
    return _VERSION + base64.urlsafe_b64encode(_id_of(key) + nonce + sealed).decode()


def _keep(connection: Connection, new: str) -> bytes:
    connection.execute("INSERT OR IGNORE INTO secrets VALUES (?, ?)", (_NAME, new.encode()))
    row = connection.execute("SELECT value FROM secrets WHERE name = ?", (_NAME,)).fetchone()
    return bytes(row[0])


def _derived(secret: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt=None, info=b"harmonium sealing").derive(secret)


def _id_of(key: bytes) -> bytes:
    return hashlib.sha256(b"id" + key).digest()[:_ID_BYTES]


def _bound(purpose: str, tenant: str) -> bytes:
    return f"{purpose}\0{tenant}".encode()


def _opened(key: bytes, nonce: bytes, sealed: bytes, purpose: str, tenant: str) -> str:
    try:
        return AESGCM(key).decrypt(nonce, sealed, _bound(purpose, tenant)).decode()
    except (InvalidTag, ValueError):
        raise NotSealed("it was altered, or is another tenant's") from None
