"""An identity provider, and what serves its documents."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from parts.jwt.key_source import CachePolicy, FetchedKeys
from tests.auth.conftest import create_key, serve

__all__ = ["create_key", "serve"]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whoever fetches keys: the machine that runs the tests may be busy."""
    monkeypatch.setattr("parts.jwt.key_source.TIMEOUT_S", 60.0)
    policy = CachePolicy(patience_s=60.0)
    monkeypatch.setattr("parts.jwt.key_source.FetchedKeys", partial(FetchedKeys, policy=policy))


class Idp:
    """An identity provider's keys and the tokens it signs, with whatever is asked changed."""

    issuer = "https://idp.example"
    audience = "urn:harmonium"

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(65537, 2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())

    def jwks(self) -> dict[str, Any]:
        keys = [("rsa1", "RS256", self.rsa), ("ec1", "ES256", self.ec)]
        return {"keys": [self.jwk(*key) for key in keys]}

    def jwk(self, kid: str, alg: str, key: Any) -> dict[str, Any]:
        made = jwt.get_algorithm_by_name(alg).to_jwk(key.public_key(), as_dict=True)
        return {name: value for name, value in made.items() if name != "key_ops"} | {
            "kid": kid,
            "alg": alg,
            "use": "sig",
        }

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = int(time.time())
        whole = {
            "iss": self.issuer,
            "sub": "ann",
            "aud": self.audience,
            "iat": now,
            "exp": now + 60,
            "scope": "inference models",
        } | changes
        return {name: value for name, value in whole.items() if value is not None}

    def token(self, alg: str = "RS256", header: Any = None, **changes: Any) -> str:
        kid = {"RS256": "rsa1", "ES256": "ec1"}.get(alg, "rsa1")
        full = {"typ": "JWT", "alg": alg, "kid": kid} | (header or {})
        given = {name: value for name, value in full.items() if value is not None}
        return self.signed(given, json.dumps(self.claims(**changes)).encode())

    def signed(self, header: dict[str, Any], payload: bytes, alg: str | None = None) -> str:
        """Signed by the key that fits `alg`, whatever the header says."""
        text = b".".join(_base64(part) for part in (json.dumps(header).encode(), payload))
        is_ec = (alg or header["alg"]) == "ES256"
        algorithm = jwt.get_algorithm_by_name("ES256" if is_ec else "RS256")
        return (
            text + b"." + _base64(algorithm.sign(text, self.ec if is_ec else self.rsa))
        ).decode()


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@pytest.fixture(scope="session")
def idp() -> Idp:
    return Idp()


Answer = Callable[[str], tuple[int, bytes]]


@pytest.fixture
def web() -> Iterator[Callable[[Answer], str]]:
    """Serves `answer(path)` on loopback and returns the URL."""
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answer(self.path)
                self.send_response(status)
                if status in (301, 302, 307):
                    self.send_header("Location", body.decode())
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):  # the client has had enough
                    self.wfile.write(body)

            def log_message(self, *_args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
