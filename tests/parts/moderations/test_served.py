"""A folder with a model for moderation, served as docs/guides/moderations.md says; nano's here."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests import plain
from tests.e2e.conftest import READY_WITHIN_S, StartServer, start_server

__all__ = ["start_server"]

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif("TEST_ENGINE_PYTHON" in os.environ, reason="of the native engine"),
]

POLICY = """
instructions: This is a forum about gardens.
categories:
  spam: Adverts that no reader requested.
  self-harm: {policy: Praise of self-harm., threshold: 0.2}
  vote: {policy: Whom to vote for., threshold: 1.0}
"""


def test_a_folder_rates_by_the_policy(
    start_server: StartServer, nano_checkpoint: Path, tmp_path: Path
) -> None:
    shutil.copytree(nano_checkpoint, tmp_path / "gpt-oss-safeguard-20b")
    (tmp_path / "policy.yaml").write_text(POLICY)
    program = str(Path(sys.executable).parent / "harmonium")
    settings = [f"--moderation-policy-path={tmp_path}/policy.yaml"]
    name = "--served-model-name=gpt-oss-safeguard-20b"
    server = start_server([program, "serve", "./gpt-oss-safeguard-20b", name, *settings],
                          folder=tmp_path)  # fmt: skip
    body = {"input": ["Buy now!", "Roses are red."], "model": "gpt-oss-safeguard-20b"}
    answer = plain.post(f"{server.url}/v1/moderations", json=body, timeout=READY_WITHIN_S).json()
    assert answer["model"] == "gpt-oss-safeguard-20b"
    for result in answer["results"]:
        assert list(result["categories"]) == ["spam", "self-harm", "vote"]
        scores = result["category_scores"]
        assert all(0 <= score <= 1 for score in scores.values())
        assert result["categories"]["self-harm"] == (scores["self-harm"] >= 0.2)
    assert len(answer["results"]) == 2
    assert server.interrupt() == 0, server.log.read_text()
