"""A damaged or foreign checkpoint is refused with the file and the tensor or key named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engines.errors import EngineStartError
from engines.native.backends.cpu import memory as memory_module
from engines.native.config import ModelConfig, NativeConfig, read_json
from engines.native.weights import read_entries
from tests.close import assert_close

ROUTER = "model.layers.1.mlp.router.weight"


def write_shards(checkpoint: Any) -> list[Path]:
    """Replace the single file by two shards and an index; returns the shards."""
    (checkpoint.path / "model.safetensors").unlink()
    names = sorted(checkpoint.tensors)
    halves = names[::2], names[1::2]
    files = [f"model-0000{i + 1}-of-00002.safetensors" for i in range(2)]
    for file, half in zip(files, halves, strict=True):
        save_file({name: checkpoint.tensors[name] for name in half}, checkpoint.path / file)
    weight_map = {name: files[name in halves[1]] for name in names}
    index = checkpoint.path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return [checkpoint.path / file for file in files]


def test_shards_load_as_one_file_does(make_checkpoint: Any, drive: Any, token_ids: Any) -> None:
    checkpoint, ids = make_checkpoint(), token_ids(10)
    write_shards(checkpoint)
    driver = drive(checkpoint, checkpoint.load())
    logits = driver.step((driver.sequence(ids), 10))[0]
    assert_close(logits, checkpoint.logits(ids)[-1], atol=1e-4, rtol=0.0)


def test_a_missing_tensor_is_named(make_folder: Any) -> None:
    checkpoint = make_folder()
    del checkpoint.tensors[ROUTER]
    checkpoint.write()
    with pytest.raises(EngineStartError, match=f"tensor {ROUTER} is missing"):
        checkpoint.load()


def test_an_extra_tensor_is_named(make_folder: Any) -> None:
    checkpoint = make_folder()
    checkpoint.tensors["model.layers.3.extra"] = torch.zeros(1)
    checkpoint.write()
    with pytest.raises(EngineStartError, match=r"model\.safetensors: tensor model\.layers\.3\.ex"):
        checkpoint.load()


def test_a_misshapen_tensor_is_named(make_folder: Any) -> None:
    checkpoint = make_folder()
    checkpoint.tensors[ROUTER] = torch.zeros(8, 63)
    checkpoint.write()
    with pytest.raises(EngineStartError, match=rf"{ROUTER} has shape \[8, 63\].* \[8, 64\]"):
        checkpoint.load()


def test_a_wrong_dtype_is_named(make_folder: Any) -> None:
    checkpoint = make_folder()
    checkpoint.tensors[ROUTER] = torch.zeros(8, 64, dtype=torch.int32)
    checkpoint.write()
    with pytest.raises(EngineStartError, match=f"{ROUTER} has dtype I32"):
        checkpoint.load()


def test_a_truncated_shard_names_file_and_tensor(make_folder: Any) -> None:
    checkpoint = make_folder()
    shard = write_shards(checkpoint)[1]
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    with pytest.raises(EngineStartError, match=rf"{shard.name}: is truncated: tensor model\.\S+"):
        checkpoint.load()


@pytest.mark.parametrize("content", [b"", b"\x05", b"\xff" * 64, b"\x03" + b"\0" * 7 + b"[1]"])
def test_a_file_that_is_no_safetensors_is_named(make_folder: Any, content: bytes) -> None:
    checkpoint = make_folder()
    (checkpoint.path / "model.safetensors").write_bytes(content)
    with pytest.raises(EngineStartError, match=r"model\.safetensors"):
        checkpoint.load()


def test_a_missing_shard_is_named(make_folder: Any) -> None:
    checkpoint = make_folder()
    shard = write_shards(checkpoint)[0]
    shard.unlink()
    with pytest.raises(EngineStartError, match=f"{shard.name}: cannot be read"):
        checkpoint.load()


def test_an_index_that_promises_too_much_is_named(make_folder: Any) -> None:
    checkpoint = make_folder()
    write_shards(checkpoint)
    path = checkpoint.path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.norm.bias"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(EngineStartError, match=r"00001\S+: tensor model\.norm\.bias"):
        checkpoint.load()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers is 'many'"),
        ({"num_key_value_heads": 3}, "num_attention_heads is not a multiple"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is above"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 3 layers"),
        ({"layer_types": ["linear"] * 3}, "layer type 'linear' is unknown"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_parameters": None}, "rope type is None"),
        ({"rope_parameters": {"rope_type": "yarn", "mscale": 1}}, "rope key 'mscale'"),
    ],
)
def test_a_foreign_config_is_refused(make_folder: Any, changes: Any, reason: str) -> None:
    checkpoint = make_folder()
    checkpoint.write_config(**changes)
    with pytest.raises(EngineStartError, match=f"config.json: {reason}"):
        checkpoint.load()


def test_an_unreadable_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match=r"config\.json: cannot be read"):
        ModelConfig.from_dir(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(EngineStartError, match=r"config\.json: is not valid JSON"):
        ModelConfig.from_dir(tmp_path)


def test_the_published_spelling_of_rope_is_read(make_checkpoint: Any) -> None:
    """openai/gpt-oss-20b has rope_scaling and rope_theta, transformers 5 rope_parameters."""
    checkpoint = make_checkpoint()
    new = ModelConfig.from_dir(checkpoint.path)
    rope = checkpoint.oracle.config.rope_parameters
    scaling = {k: v for k, v in rope.items() if k != "rope_theta"}
    checkpoint.write_config(
        rope_parameters=None,
        rope_scaling=scaling,
        rope_theta=150000,
        layer_types=None,
        swiglu_alpha=None,
        attention_bias=True,
    )
    assert ModelConfig.from_dir(checkpoint.path) == new


def test_an_unknown_option_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match=r"'max_seqs' is unknown.*'max_num_seqs'"):
        NativeConfig.from_options({"model_dir": str(tmp_path), "max_seqs": 3})


@pytest.mark.parametrize("options", [{"device": "tpu"}, {"dtype": "float16"}, {"block_size": 0}])
def test_an_impossible_option_is_named(tmp_path: Path, options: Any) -> None:
    with pytest.raises(EngineStartError, match=next(iter(options))):
        NativeConfig.from_options({"model_dir": str(tmp_path), **options})


def test_a_model_above_the_free_memory_is_refused(
    make_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = make_folder()
    monkeypatch.setattr(memory_module, "available_bytes", lambda: 1000)
    with pytest.raises(EngineStartError, match=r"need \d+ bytes as float32, and 1000 bytes"):
        checkpoint.load()


@pytest.mark.parametrize("name", [7, "../model.safetensors", "/etc/passwd", ""])
def test_an_index_names_files_of_its_folder_only(make_folder: Any, name: object) -> None:
    folder = make_folder().path
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(EngineStartError, match="not a plain file name"):
        read_entries(folder)


def test_a_pipe_in_a_files_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(EngineStartError, match="is not a regular file"):
        read_json(tmp_path / "config.json")
    with pytest.raises(EngineStartError, match="is not a regular file"):
        read_entries(tmp_path)
