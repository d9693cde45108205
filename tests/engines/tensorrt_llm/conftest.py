"""TensorRT-LLM cannot be installed without NVIDIA's index: a stand-in of its names is imported."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.spec import EngineSpec

HERE = Path(__file__).parent
SURFACE = json.loads((HERE / "surface.json").read_text())
VOCAB_SIZE = 512


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in's `_llm` module; forgotten with the test."""
    monkeypatch.syspath_prepend(str(HERE / "recorded"))
    import tensorrt_llm._llm

    tensorrt_llm._llm.plan.__init__()
    yield tensorrt_llm._llm
    for name in [n for n in sys.modules if n.split(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


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
        vocabulary_path=str(folder / "vocabulary"),
        precision="mxfp4",
        num_devices=1,
    )
