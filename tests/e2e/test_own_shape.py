"""A checkpoint in a shape that no model of the catalogue has, served from its folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import GptOssConfig, GptOssForCausalLM


def write_odd(folder: Path) -> None:
    """Random weights: 3 layers, 5 experts, 6 heads of 16 over a hidden size of 48."""
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=201_088,
        hidden_size=48,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=5,
        num_experts_per_tok=2,
        sliding_window=32,
        max_position_embeddings=2048,
        dtype="bfloat16",
    )
    GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def test_a_checkpoint_of_an_odd_shape_is_served_from_its_folder(
    start_server: Any, tmp_path: Path
) -> None:
    write_odd(folder := tmp_path / "odd-oss")
    harmonium = str(Path(sys.executable).parent / "harmonium")
    server = start_server([harmonium, "serve", f"--model-path={folder}"])
    with httpx.Client(base_url=server.url, timeout=60) as client:
        [model] = client.get("/v1/models").json()["data"]
        assert (model["id"], model["max_model_len"]) == ("odd-oss", 2048)
        body = {"model": "odd-oss", "max_tokens": 6, "temperature": 0}
        raw = client.post("/v1/completions", json=body | {"prompt": "One, two,"}).json()
        assert raw["usage"]["completion_tokens"] == 6
        messages = [{"role": "user", "content": "Hello"}]
        chat = client.post("/v1/chat/completions", json=body | {"messages": messages})
        assert chat.json()["model"] == "odd-oss", chat.text
    log = server.log.read_text()
    assert "gpt-oss in a shape of its own: 3 layers of 48, 5 experts, 19 million weights" in log
    assert "Served by the values of nano/native-cpu-fp32-tp1-pp1-balanced, generic" in log
    assert server.interrupt() == 0
