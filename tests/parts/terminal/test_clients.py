"""What `harmonium clients` prints; `make clients` runs the agents with it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from parts.terminal.clients.configurations import CONFIGURATIONS
from service.__main__ import main


@contextmanager
def listing(*cards: dict[str, Any]) -> Iterator[str]:
    """The URL of a server that lists these models to who has the key `right`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.headers["Authorization"] == "Bearer right"
            self.send_response(200 if is_known else 401)
            self.end_headers()
            error = {"error": {"message": "This server needs an API key or token."}}
            self.wfile.write(json.dumps({"data": cards} if is_known else error).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARMONIUM_API_KEY", "right")


@pytest.mark.parametrize("client", CONFIGURATIONS)
def test_the_lines_have_the_servers_model_and_not_the_key(
    client: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with listing({"id": "mine", "max_model_len": 26_624}) as url:
        assert main(["clients", client, "--url", url]) == 0
    printed = capsys.readouterr().out
    assert url in printed
    assert "mine" in printed
    assert "HARMONIUM_API_KEY" in printed
    assert "right" not in printed
    # Cline has no option for it; Copilot is told the prompt's share.
    context = {"cline": "", "copilot": str(26_624 - 6_656)}.get(client, "26624")
    assert context in printed


def test_without_a_name_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clients"]) == 0
    assert {*capsys.readouterr().out.split()} >= {*CONFIGURATIONS}


@pytest.mark.parametrize(
    ("card", "complaint"),
    [
        ({"id": "x; rm -rf ~", "max_model_len": 10}, "cannot be written in a shell"),
        ({"id": "x' '", "max_model_len": 10}, "cannot be written in a shell"),
        ({"id": "x"}, "does not report the context"),
    ],
)
def test_what_cannot_be_pasted_is_not_printed(
    capsys: pytest.CaptureFixture[str], card: dict[str, Any], complaint: str
) -> None:
    with listing(card) as url:
        assert main(["clients", "codex", "--url", url]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err


def test_a_wrong_key_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARMONIUM_API_KEY", "wrong")
    with listing() as url:
        assert main(["clients", "claude", "--url", url]) == 1
    assert "needs an API key" in capsys.readouterr().err
