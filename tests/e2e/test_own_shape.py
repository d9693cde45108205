"""A checkpoint in a shape that no model of the catalogue has, served from its folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tools.benchmarks.checkpoint import write_random


# tests/profiles/store/test_custom_shape.py and tests/engines/native/model do its parts
@pytest.mark.slow
def test_a_checkpoint_of_an_odd_shape_is_served_from_its_folder(
    start_server: Any, tmp_path: Path
) -> None:
    folder = write_random(tmp_path / "odd-oss", hidden=48, num_layers=4, num_experts=5)
    harmonium = str(Path(sys.executable).parent / "harmonium")
    server = start_server([harmonium, "serve", f"--model-path={folder}"])
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        [model] = client.get("/v1/models").json()["data"]
        assert (model["id"], model["max_model_len"]) == ("odd-oss", 4096)
        body = {"model": "odd-oss", "max_tokens": 6, "temperature": 0}
        messages = [{"role": "user", "content": "Hello"}]
        chat = client.post("/v1/chat/completions", json=body | {"messages": messages})
        assert chat.json()["model"] == "odd-oss", chat.text
        assert chat.json()["usage"]["completion_tokens"] == 6
    log = server.log.read_text()
    assert "gpt-oss in a custom shape: 4 layers of 48, 5 experts, 20 million weights" in log
    assert "Served by the values of nano/native-cpu-fp32-tp1-pp1-balanced, generic" in log
    assert server.interrupt() == 0
