"""TensorRT-LLM cannot be installed without NVIDIA's index: a stand-in of its names is imported."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest

from engines.spec import EngineSpec
from tests.engines.tensorrt_llm.stand_in import Plan, modules

VOCAB_SIZE = 512


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """What its LLM does, and with what it was made; forgotten with the test."""
    plan = Plan()
    for name, module in modules(plan).items():
        monkeypatch.setitem(sys.modules, name, module)
    return plan


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint by its config.json, and a vocabulary of the 256 bytes."""
    config = {
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 256,
        "quantization_config": {"quant_method": "mxfp4"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = b"".join(b64encode(bytes([i])) + b" %d\n" % i for i in range(256))
    (tmp_path / "vocabulary").write_bytes(words)
    return tmp_path


@pytest.fixture
def spec(folder: Path) -> EngineSpec:
    return EngineSpec(
        "tensorrt_llm",
        limits={"max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 64},
        model_dir=str(folder),
        precision="mxfp4",
        num_devices=1,
    )


@pytest.fixture
def guided(spec: EngineSpec, folder: Path) -> EngineSpec:
    """With the vocabulary, for which each start has a process to try grammars."""
    return replace(spec, vocabulary_path=str(folder / "vocabulary"))
