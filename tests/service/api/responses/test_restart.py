"""`harmonium serve` as a process: what it was told to keep is there after a restart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import openai
import pytest

Fixture = Callable[..., Any]

PROGRAM = Path(__file__).parents[2] / "serve_scripted.py"
PATIENCE_S = 60


@pytest.fixture
def start(harmony_ids: Fixture, hello: str, tmp_path: Path) -> Iterator[Fixture]:
    """Start a server whose first answer ends and whose others never do; its cache stays."""
    endless = list(harmony_ids("<|channel|>final<|message|>word"))
    options = json.dumps({"scripts": [list(harmony_ids(hello)), endless], "step_s": 0.005})
    command = [sys.executable, str(PROGRAM), options, "serve"]
    flags = ["--server-port=0", "--drain-grace-s=0.2", f"--cache-path={tmp_path / 'cache'}"]
    started: list[subprocess.Popen[str]] = []

    def run() -> tuple[subprocess.Popen[str], openai.OpenAI]:
        process = subprocess.Popen(
            [*command, *flags], stderr=subprocess.PIPE, text=True, env={**os.environ}
        )
        started.append(process)
        assert process.stderr is not None
        url = ready_url(process.stderr)
        return process, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    yield run
    for process in started:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def ready_url(log: IO[str]) -> str:
    for line in log:
        if "Ready after" in line:
            return line.split(" on ")[-1].strip()
    raise AssertionError("the server ended before it was ready")


def test_a_restart_keeps_responses_and_tells_which_were_cut(start: Fixture) -> None:
    first, client = start()
    with client:
        kept = client.responses.create(model="nano", input="Hi")
        cut = client.responses.create(model="nano", input="Hi", background=True)
        for event in client.responses.retrieve(cut.id, stream=True):
            if event.type == "response.output_text.delta":
                break
    first.terminate()
    assert first.wait(PATIENCE_S) == 0
    _, client = start()
    with client:
        assert client.responses.retrieve(kept.id) == kept
        ended = client.responses.retrieve(cut.id)
        assert (ended.status, ended.output[0].status) == ("failed", "incomplete")
        assert ended.error is not None
        again = client.responses.create(model="nano", input="And?", previous_response_id=kept.id)
        assert again.output_text == kept.output_text
