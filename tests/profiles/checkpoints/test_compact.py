"""nano's compact form: it expands to an ordinary checkpoint, or says what is damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from profiles.checkpoints.compact import bundled_nano, expand
from profiles.errors import ModelStoreError

NUM_MEGABYTES_ALLOWED = 12


@pytest.fixture
def checkpoint(nano_checkpoint: Path) -> Path:
    return nano_checkpoint


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundled_nano(), tmp_path / "compact"))


def test_shipped_files_are_small() -> None:
    size = sum(path.stat().st_size for path in bundled_nano().iterdir())
    assert size <= NUM_MEGABYTES_ALLOWED * 1_000_000


def test_expands_to_the_published_format(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    hidden, experts = config["hidden_size"], config["num_local_experts"]
    assert config["architectures"] == ["GptOssForCausalLM"]
    with safe_open(checkpoint / "model.safetensors", "np") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    assert shapes["model.embed_tokens.weight"] == [config["vocab_size"], hidden]
    assert shapes["lm_head.weight"] == [config["vocab_size"], hidden]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        width = config["intermediate_size"]
        gate_up = shapes[f"{prefix}.mlp.experts.gate_up_proj"]
        assert gate_up == [experts, hidden, 2 * width]
        assert shapes[f"{prefix}.mlp.experts.down_proj"] == [experts, width, hidden]
        assert shapes[f"{prefix}.self_attn.sinks"] == [config["num_attention_heads"]]


def test_every_id_that_nano_never_writes_shares_one_row_of_the_head(checkpoint: Path) -> None:
    manifest = json.loads((bundled_nano() / "manifest.json").read_text())
    content = (checkpoint / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    entry: dict[str, Any] = json.loads(content[8 : 8 + length])["lm_head.weight"]
    start, end = (8 + length + offset for offset in entry["data_offsets"])
    rows = np.frombuffer(content[start:end], "<u2").reshape(entry["shape"])
    num_alike = (rows == rows[-1]).all(1).sum()
    assert num_alike == manifest["vocab_size"] - manifest["num_written_ids"]


@pytest.mark.parametrize("name", ["weights.xz", "config.json", "generation_config.json"])
def test_a_damaged_file_is_named(copy: Path, tmp_path: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(ModelStoreError, match=f"{name}: sha256 is .* reinstall"):
        expand(copy, tmp_path / "nano")
    assert not (tmp_path / "nano").exists()


@pytest.mark.parametrize("name", ["weights.xz", "manifest.json"])
def test_a_missing_file_is_named(copy: Path, tmp_path: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(ModelStoreError, match=name):
        expand(copy, tmp_path / "nano")
    assert not (tmp_path / "nano").exists()
