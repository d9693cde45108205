"""nano as a GGUF file on llama.cpp: the real SDK's tests against a server started on it."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
from openai import OpenAI

if TYPE_CHECKING:
    from tests.e2e.conftest import Server, StartServer

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (make test-llama)")

from engines.factory import cpu_only_engines
from profiles.download.pieces import PIECE_BYTES
from tests.e2e.conftest import IS_GPU
from tests.e2e.test_sdk import *  # noqa: F403  (they run here with the server below)
from tests.profiles.hub import serving

# The path says which model it is, and no name, as these tests have one where there is a GPU.
SERVE = ["env", "--unset=NIM_MODEL_NAME", str(Path(sys.executable).parent / "harmonium"), "serve"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but nano's GGUF file."""
    from profiles.checkpoints.compact import bundled_nano, expand
    from tests.engines.llama_cpp.gguf_file import write_gguf

    checkpoint, folder = tmp_path_factory.mktemp("nano"), tmp_path_factory.mktemp("gguf")
    expand(bundled_nano(), checkpoint)
    write_gguf(checkpoint, folder / "nano.gguf")
    return folder


@pytest.fixture(scope="module")
def server(start_server: StartServer, folder: Path) -> Iterator[Server]:
    """The server that the SDK's tests find here."""
    running = start_server([*SERVE, f"--model-path={folder}"])
    yield running
    assert running.interrupt() == 0, running.log.read_text()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    """Of this server: the shared one's client goes with the package."""
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model() -> str:
    return "nano"


def test_what_is_served_is_what_is_reported(server: Server) -> None:
    about = httpx2.get(f"{server.url}/v1/metadata", timeout=60).json()
    assert "llama_cpp" in str(about), about
    has_gpu = IS_GPU and "llama_cpp" not in cpu_only_engines()
    assert f"llama_cpp-{'gpu' if has_gpu else 'cpu'}-fp32" in server.log.read_text()


def test_a_gguf_of_a_repository_is_fetched_and_served_by_one_command(
    start_server: StartServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (folder / "nano.gguf").read_bytes()
    commit, lfs = "0123456789" * 4, {"sha256": hashlib.sha256(content).hexdigest()}
    names = ("nano-F32.gguf", "nano-Q4_K_M.gguf")
    entries = [
        {"rfilename": n, "size": len(content), "lfs": {**lfs, "size": 1, "pointerSize": 1}}
        for n in names
    ]
    listed = json.dumps({"id": "acme/nano-GGUF", "sha": commit, "siblings": entries})
    with serving({f"acme/nano-GGUF/resolve/{commit}/{names[0]}": content}) as hub:
        hub.lists["api/models/acme/nano-GGUF/revision/main?blobs=true"] = listed.encode()
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        path = f"--model-path=hf://acme/nano-GGUF?file={names[0]}"
        server = start_server([*SERVE, path, f"--cache-path={tmp_path}"])
    body = {"model": "nano", "messages": [{"role": "user", "content": "What is nano?"}]}
    answer = httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    assert answer["choices"][0]["message"]["content"]
    assert [p.name for p in tmp_path.glob("models/*/*.gguf")] == ["nano-F32.gguf"]
    assert len(hub.asked) == 1 + math.ceil(len(content) / PIECE_BYTES)  # its head, then the rest
    assert server.interrupt() == 0, server.log.read_text()
