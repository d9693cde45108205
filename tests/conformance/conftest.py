"""A scripted server as a process, for a fuzzer of its documented API."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import pytest

from service.harmony import vocabulary

MODEL = "gpt-oss-20b"
PROGRAM = Path(__file__).parents[1] / "service" / "serve_scripted.py"
PATIENCE_S = 180
# The default run neither needs nor loads what `make conformance` installs.
collect_ignore_glob = [] if find_spec("schemathesis") else ["test_*.py"]

Serve = Callable[..., str]


def harmony_ids(text: str) -> list[int]:
    """Ids of Harmony text as a model would write it, `<|...|>` being control tokens."""
    ids: list[int] = []
    for plain, name in re.findall(r"(.*?)(?:<\|(\w+)\|>|\Z)", text, re.DOTALL):
        ids += vocabulary.encode_text(plain) if plain else []
        ids += [getattr(vocabulary, name.upper())] if name else []
    return ids


def ready_url(log: IO[str]) -> str:
    """Where the server listens, once its log says so."""
    for line in log:
        if "Ready after" in line:
            return line.split(" on ")[-1].strip()
    raise AssertionError("the server ended before it was ready")


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Start `harmonium serve`, whose model writes these scripts in turn; gives the URL."""
    started: list[tuple[subprocess.Popen[str], threading.Thread]] = []

    def start(*scripts: str, environment: dict[str, str] | None = None, **options: Any) -> str:
        scripted = json.dumps({"scripts": [harmony_ids(s) for s in scripts], **options})
        cache = tmp_path_factory.mktemp("cache")
        flags = ["--server-port=0", f"--served-model-name={MODEL}", f"--cache-path={cache}"]
        command = [sys.executable, str(PROGRAM), scripted, "serve", *flags]
        given = os.environ | {"NIM_ALLOW_ENGINE_KILL": "0"} | (environment or {})
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=given)
        assert process.stderr is not None
        url = ready_url(process.stderr)
        reader = threading.Thread(target=process.stderr.read)  # a full pipe would block the server
        reader.start()
        started.append((process, reader))
        return url

    yield start
    for process, reader in started:
        process.kill()
        process.wait(PATIENCE_S)
        reader.join(PATIENCE_S)
        assert process.stderr is not None
        process.stderr.close()
