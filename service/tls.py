"""TLS when it is ours: the server's certificate, and who a client's certificate names."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from auth.base import AccessError
from service.settings import Settings

CERTIFICATE = "certificate"  # its key in the state of a request
_NAMES = ("URI", "DNS", "email")  # of a certificate's alternative names, the most telling first


class TlsError(AccessError):
    """TLS cannot be had as configured; the message names the setting and the remedy."""


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """What connections are wrapped in, None for plain HTTP; raises TlsError."""
    if settings.ssl_mode == "disabled":
        return None
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


def peer_state(transport: asyncio.BaseTransport) -> dict[str, str]:
    """What the state of a connection's requests says of its client's certificate, if it has one."""
    certificate = transport.get_extra_info("peercert")
    return {CERTIFICATE: name_of(certificate)} if certificate else {}


def name_of(certificate: Mapping[str, Any]) -> str:
    """Whose certificate it is, e.g. `URI:spiffe://cluster/gateway` or `CN:gateway`."""
    alternatives = dict(reversed(certificate.get("subjectAltName", ())))
    for kind in _NAMES:
        if kind in alternatives:
            return f"{kind}:{alternatives[kind]}"
    subject = dict(pair for part in certificate.get("subject", ()) for pair in part)
    return f"CN:{subject['commonName']}" if "commonName" in subject else f"subject:{subject}"
