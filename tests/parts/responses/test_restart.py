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

PROGRAM = Path(__file__).parents[2] / "service/serve_scripted.py"
PATIENCE_S = 60


@pytest.fixture
def start(harmony_ids: Fixture, hello: str, tmp_path: Path) -> Iterator[Fixture]:
    """Start a server with one answer that ends and one that never does; its cache stays."""
    endless = list(harmony_ids("<|channel|>final<|message|>word"))
    scripts = [list(harmony_ids(hello)), endless]
    flags = ["--server-port=0", "--drain-grace-s=0.2", f"--cache-path={tmp_path / 'cache'}"]
    started: list[subprocess.Popen[str]] = []

    def run() -> tuple[subprocess.Popen[str], openai.OpenAI]:
        options = json.dumps({"scripts": scripts, "step_s": 0.005})
        scripts.reverse()  # the first request after a restart is the one that continues
        command = [sys.executable, str(PROGRAM), options, "serve"]
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


def test_a_restart_keeps_responses_and_continues_those_that_ran(start: Fixture) -> None:
    first, client = start()
    with client:
        kept = client.responses.create(model="nano", input="Hi")
        cut = client.responses.create(
            model="nano", input="Hi", background=True, max_output_tokens=600
        )
        seen = []
        for event in client.responses.retrieve(cut.id, stream=True):
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
    first.terminate()
    assert first.wait(PATIENCE_S) == 0
    _, client = start()
    with client:
        assert client.responses.retrieve(kept.id) == kept
        last = seen[-1].sequence_number
        seen += client.responses.retrieve(cut.id, stream=True, starting_after=last)
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        ended = seen[-1].response
        assert ended.status == "incomplete"
        assert ended.usage.output_tokens == 600
        deltas = [event.delta for event in seen if event.type == "response.output_text.delta"]
        assert "".join(deltas) == ended.output_text
        again = client.responses.create(model="nano", input="And?", previous_response_id=kept.id)
        assert again.output_text == kept.output_text
