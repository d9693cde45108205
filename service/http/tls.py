"""TLS when it is ours: the server's certificate, and who a client's certificate names."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from auth.base import AccessError
from service.settings.settings import Settings

log = logging.getLogger("harmonium")

RENEWAL_S = 10.0
CERTIFICATE = "certificate"  # its key in the state of a request
_NAMES = ("URI", "DNS", "email")  # of a certificate's alternative names, the most telling first


class TlsError(AccessError):
    """TLS cannot be had as configured; the message names the setting and the remedy."""


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """The TLS context of new connections, None for plain HTTP; raises TlsError.

    Files that are renewed count for new connections within `RENEWAL_S`.
    """
    if settings.ssl_mode == "disabled":
        return None
    renewal = _Renewal(settings)
    renewal.context.sni_callback = renewal
    return renewal.context


class _Renewal:
    """Gives each new connection a fresh context once the files have changed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen = self._signature()
        self._checked_at = time.monotonic()
        self.context = _context_of(settings)

    def __call__(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        if time.monotonic() >= self._checked_at + RENEWAL_S:
            self._checked_at = time.monotonic()
            if (signature := self._signature()) != self._seen:
                self._seen = signature
                self._renew()
        connection.context = self.context

    def _renew(self) -> None:
        try:
            self.context = _context_of(self._settings)
            log.info("The TLS certificate was reloaded.")
        except TlsError as error:
            log.error("Keeping the previous TLS certificate: %s", error)

    def _signature(self) -> tuple[int, ...]:
        """A value that changes when a file is written or replaced."""
        settings = self._settings
        paths = (settings.ssl_certs_path, settings.ssl_key_path, settings.ssl_ca_certs_path)
        return tuple(number for path in paths if path for number in _identity(path))


def _identity(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return (0, 0)
    return (stat.st_mtime_ns, stat.st_ino)


def _context_of(settings: Settings) -> ssl.SSLContext:
    assert settings.ssl_certs_path is not None
    assert settings.ssl_key_path is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _check_readable("NIM_SSL_CERTS_PATH", settings.ssl_certs_path)
    _check_readable("NIM_SSL_KEY_PATH", settings.ssl_key_path)
    try:
        # Without a password function, an encrypted key would ask the terminal for one.
        context.load_cert_chain(settings.ssl_certs_path, settings.ssl_key_path, password=lambda: "")
    except (ssl.SSLError, ValueError):
        message = "do not hold a certificate and its unencrypted private key in PEM form"
        raise TlsError(f"NIM_SSL_CERTS_PATH and NIM_SSL_KEY_PATH {message}.") from None
    if settings.ssl_ca_certs_path is not None:
        _trust(context, settings.ssl_ca_certs_path)
    return context


def _trust(context: ssl.SSLContext, path: Path) -> None:
    _check_readable("NIM_SSL_CA_CERTS_PATH", path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise TlsError(
            f"NIM_SSL_CA_CERTS_PATH: {path} holds no certificates in PEM form."
        ) from None
    context.verify_mode = ssl.CERT_REQUIRED


def _check_readable(name: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise TlsError(f"{name}: {path} cannot be read: {error.strerror}.") from None


def expires_at(path: Path | None) -> float | None:
    """When the certificate in this file expires, in seconds since 1970; None where there is none.

    Reads the file.
    """
    from cryptography.x509 import load_pem_x509_certificates  # most servers have no TLS

    try:
        found = load_pem_x509_certificates(path.read_bytes()) if path else []
    except (OSError, ValueError):  # it is being replaced
        return None
    return found[0].not_valid_after_utc.timestamp() if found else None


def peer_state(transport: asyncio.BaseTransport) -> dict[str, str]:
    """The entry of a connection's client certificate for its requests' state; empty without one."""
    certificate = transport.get_extra_info("peercert")
    name = name_of(certificate) if certificate else ""
    return {CERTIFICATE: name} if name else {}


def name_of(certificate: Mapping[str, Any]) -> str:
    """The name of a certificate's subject, e.g. `URI:spiffe://cluster/gateway` or `CN:gateway`.

    Empty if it has none: such a certificate identifies no caller.
    """
    alternatives = dict(reversed(certificate.get("subjectAltName", ())))
    for kind in _NAMES:
        if kind in alternatives:
            return f"{kind}:{alternatives[kind]}"
    subject = dict(pair for part in certificate.get("subject", ()) for pair in part)
    if "commonName" in subject:
        return f"CN:{subject['commonName']}"
    return f"subject:{subject}" if subject else ""
