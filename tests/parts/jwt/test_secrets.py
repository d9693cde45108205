"""No token is found in anything that the server writes, shows or passes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.auth.test_secrets import said_to


def test_no_token_gets_out(idp: Any, serve: Callable[..., Any], tmp_path: Path) -> None:
    pem = idp.rsa.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "key.pem").write_bytes(pem)
    tokens = [idp.token(scope="inference models metrics admin"), idp.token(aud="urn:other")]
    server = serve(
        "--jsonl-logging",
        "--log-level=DEBUG",
        f"--jwt-public-key-path={tmp_path / 'key.pem'}",
        f"--jwt-issuer={idp.issuer}",
        f"--jwt-audience={idp.audience}",
    )
    url = json.loads(server.wait_for("Ready after"))["message"].split(" on ")[-1]
    seen, statuses = said_to(url, *tokens)
    assert {200, 400, 401, 404} <= statuses
    tree = psutil.Process(server.process.pid).children(recursive=True)
    engine = next(process for process in tree if "engines.process.host" in process.cmdline())
    seen += [repr(engine.environ())]
    assert server.end() == 0
    seen += [*server.out, *server.log]
    signatures = [token.rsplit(".", 1)[1] for token in tokens]
    assert not [text[:300] for signature in signatures for text in seen if signature in text]
