"""What a start says on a terminal."""

from __future__ import annotations

import pytest

from service.cli.face import show_ready
from service.settings.settings import load


@pytest.mark.parametrize(
    ("port", "command"),
    [(8000, "harmonium chat"), (8001, "harmonium chat --url http://here:8001")],
)
def test_who_started_the_server_is_told_how_to_chat(
    capsys: pytest.CaptureFixture[str], port: int, command: str
) -> None:
    show_ready(load({"server_port": port}), f"http://here:{port}", "nano", 1.0)
    said = " ".join(capsys.readouterr().err.split())
    assert "nano is ready (1.0 s). Chat in another terminal: `" in said
    assert f"{command}`" in said
