"""The image's health check; exit code 0 when ready.

`python -m service.http.probe PORT SSL_MODE [HOST]`: HOST is the address that the server listens on,
by default every one.

Only the standard library, because it is started every few seconds. It asks this very machine, so
that the certificate proves nothing and is not checked. Under mutual TLS it has no certificate to
show: an answer to its greeting has to do, which tells that the server lives, not that it is ready.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import sys

_EVERYWHERE = ("", "::", "0.0.0.0")
_LOOPBACK = ("127.0.0.1", "::1")
_TIMEOUT_S = 4


def is_ready(port: int, ssl_mode: str, host: str = "") -> bool:
    """Whether the server on this port says that it is ready."""
    hosts = _LOOPBACK if host in _EVERYWHERE else (host,)
    return any(_is_ready(one, port, ssl_mode) for one in hosts)


def _is_ready(host: str, port: int, ssl_mode: str) -> bool:
    try:
        if ssl_mode == "mtls":
            return _is_alive(host, port)
        return _asks(host, port, is_tls=ssl_mode == "tls")
    except (OSError, http.client.HTTPException):
        return False


def _asks(host: str, port: int, *, is_tls: bool) -> bool:
    connection = (
        http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=_any_certificate())
        if is_tls
        else http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    )
    try:
        connection.request("GET", "/v1/health/ready")
        return connection.getresponse().status == 200
    finally:
        connection.close()


def _is_alive(host: str, port: int) -> bool:
    """In TLS 1.3 the server asks for our certificate only after its own part of the greeting."""
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as plain:
        context = _any_certificate()
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with context.wrap_socket(plain):
            return True


def _any_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


if __name__ == "__main__":
    sys.exit(not is_ready(int(sys.argv[1]), sys.argv[2].lower(), *sys.argv[3:]))
