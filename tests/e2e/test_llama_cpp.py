"""nano as a GGUF file on llama.cpp: the real SDK's tests against a server started on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from tests.e2e.conftest import Server, StartServer

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (make test-llama)")

from tests.e2e.test_sdk import *  # noqa: F403  (they run here with the server below)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but nano's GGUF file."""
    from profiles.compact import bundled_nano, expand
    from tests.engines.llama_cpp.gguf_file import write_gguf

    checkpoint, folder = tmp_path_factory.mktemp("nano"), tmp_path_factory.mktemp("gguf")
    expand(bundled_nano(), checkpoint)
    write_gguf(checkpoint, folder / "nano.gguf")
    return folder


@pytest.fixture(scope="module")
def server(start_server: StartServer, folder: Path) -> Iterator[Server]:
    """The server that the SDK's tests find here."""
    harmonium = str(Path(sys.executable).parent / "harmonium")
    running = start_server([harmonium, "serve", f"--model-path={folder}"])
    yield running
    assert running.interrupt() == 0, running.log.read_text()


@pytest.fixture(scope="module")
def model() -> str:
    return "nano"


def test_what_is_served_is_what_is_reported(server: Server) -> None:
    about = httpx.get(f"{server.url}/v1/metadata", timeout=60).json()
    assert "llama_cpp" in str(about), about
    assert "llama_cpp-cpu-fp32" in server.log.read_text()
