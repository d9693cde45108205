"""One sweep: no credential is found in anything that the server writes, shows or passes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from auth.key_record import new_key
from tests import loopback, plain

STATIC_KEY = "a-static-key-nobody-may-see"
REDIS_PASSWORD = "a-redis-password-nobody-may-see"
OTLP_HEADER = "a-collector-token-nobody-may-see"
CHAT = "/v1/chat/completions"
GETS = ("/v1/models", "/v1/metadata", "/v1/metrics", "/metrics", "/openapi.json", "/nowhere")


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """An OTLP collector that keeps the bodies as they come; strings are plain in protobuf."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args: Any) -> None:
            pass

    server = loopback.HttpServer((loopback.ADDRESS, 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://{loopback.IN_URL}:{server.server_address[1]}", bodies
    server.shutdown()
    server.server_close()


def test_no_secret_gets_out(
    serve: Callable[..., Any],
    create_key: Callable[..., str],
    collector: tuple[str, list[bytes]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept_key = create_key(tmp_path / "keys.json", "--scopes=inference,models,metrics,admin")
    wrong = [new_key()[0], "sk-wrong-key-of-somebody"]
    server = serve(
        "--jsonl-logging",
        "--log-level=DEBUG",
        f"--api-keys-path={tmp_path / 'keys.json'}",
        NIM_API_KEYS=STATIC_KEY,
        NIM_REDIS_URL=f"redis://user:{REDIS_PASSWORD}@127.0.0.1:1/0",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector[0],
        OTEL_EXPORTER_OTLP_HEADERS=f"x-token={OTLP_HEADER}",
    )
    url = json.loads(server.wait_for("Ready after"))["message"].split(" on ")[-1]
    seen, statuses = said_to(url, STATIC_KEY, kept_key, *wrong)
    assert {200, 400, 401, 404} <= statuses
    tree = [psutil.Process(server.process.pid)]
    tree += tree[0].children(recursive=True)
    assert len(tree) == 3, "the parent, a worker and the engine"
    seen += [" ".join(process.cmdline()) for process in tree]
    engine = next(process for process in tree if "engines.process.host" in process.cmdline())
    seen += [repr(engine.environ())]
    assert server.end() == 0
    seen += [*server.out, *server.log, *(body.decode("latin-1") for body in collector[1])]
    secrets = {
        "static key": STATIC_KEY,
        "kept key": kept_key.split("_", 2)[2],
        "Redis password": REDIS_PASSWORD,
        "collector's token": OTLP_HEADER,
        "wrong key": wrong[0].split("_", 2)[2],
        "somebody's key": wrong[1],
    }
    found = {
        name: text[:300] for name, secret in secrets.items() for text in seen if secret in text
    }
    assert found == {}
    assert collector[1], "nothing was sent to the collector"


def said_to(url: str, *credentials: str) -> tuple[list[str], set[int]]:
    """Every answer to requests with these credentials, and their statuses."""
    seen: list[str] = []
    statuses: set[int] = set()
    # A connection for each: the server may close one that rests while the machine is busy.
    limits = httpx2.Limits(max_keepalive_connections=0)
    with plain.Client(base_url=url, timeout=60, limits=limits) as client:
        for credential in credentials:
            for request in requests(client, credential):
                answer = client.send(request)
                statuses.add(answer.status_code)
                seen.append(f"{answer.headers} {answer.text}")
            for request in misplaced(client, credential):
                client.send(request)  # an answer may repeat it to the one who sent it
    return seen, statuses


def requests(client: httpx2.Client, credential: str) -> list[httpx2.Request]:
    """What a caller may send, right and wrong, with the credential in either header."""
    good = {"model": "nano", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    headers = [{"Authorization": f"Bearer {credential}"}, {"X-API-Key": credential}]
    made = [client.build_request("GET", path, headers=headers[0]) for path in GETS]
    bodies: tuple[Any, ...] = (good, good | {"model": "gpt-4"}, good | {"nonsense": 1}, [])
    for body in bodies:
        made.append(client.build_request("POST", CHAT, json=body, headers=headers[0]))
    made.append(client.build_request("POST", CHAT, json={}, headers=headers[1]))
    made.append(client.build_request("GET", "/v1/responses/resp_0", headers=headers[0]))
    made.append(client.build_request("GET", "/v1/models", headers={"X-API-Key": credential}))
    return made


def misplaced(client: httpx2.Client, credential: str) -> list[httpx2.Request]:
    """The credential where it does not belong and is taken for something else."""
    key = {"X-API-Key": credential}
    trace = f"00-{'1' * 32}-{'2' * 16}-01"
    body = {
        "model": "nano",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 8,
        "stop": [credential[:64]],
    }
    return [
        client.build_request("GET", "/v1/models", headers=key | {"X-Request-Id": credential[:128]}),
        client.build_request("GET", f"/v1/models/{credential}"[:200], headers=key),
        client.build_request("GET", "/v1/models", headers=key | {"User-Agent": credential}),
        client.build_request(
            "POST",
            CHAT,
            json=body,
            headers=key | {"traceparent": trace, "tracestate": f"vendor={credential[:200]}"},
        ),
    ]
