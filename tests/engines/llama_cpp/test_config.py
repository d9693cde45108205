"""What the llama.cpp engine is asked to run, and what it refuses."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from engines.errors import EngineStartError
from engines.llama_cpp.config import LlamaCppConfig
from engines.spec import EngineSpec

REFUSED: dict[str, Any] = {
    "num_devices": 2,
    "tensor_parallel": 2,
    "pipeline_parallel": 2,
    "expert_parallel": 2,
    "attention_dp": True,
    "artefact_dir": "/some/store",
    "kv_dtype": "fp8",
    "memory_fraction": 0.0,
    "parts": {"parts": {}},
}
TAKEN: dict[str, Any] = {
    "options": {"num_threads": 3, "gpu_layers": 20},
    "limits": {"max_num_seqs": 7},
    "model_dir": "/some/folder",
    "vocabulary_path": "/some/file",
    "precision": "mxfp4",
    "kv_dtype": "q8_0",
    "memory_fraction": 0.5,
    "num_devices": 1,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_do_is_named(name: str) -> None:
    spec = EngineSpec("llama_cpp", model_dir="/nowhere")
    with pytest.raises(EngineStartError, match=name):
        LlamaCppConfig.from_spec(replace(spec, **{name: REFUSED[name]}))


def test_what_it_can_do_reaches_it() -> None:
    config = LlamaCppConfig.from_spec(EngineSpec("llama_cpp", **TAKEN))
    assert config == LlamaCppConfig(
        model_dir=Path("/some/folder"),
        vocabulary_path=Path("/some/file"),
        precision="mxfp4",
        kv_dtype="q8_0",
        memory_fraction=0.5,
        num_devices=1,
        num_threads=3,
        gpu_layers=20,
        max_num_seqs=7,
    )
    # No field of the spec is missing here; the process and the factory see to these two.
    named = {*REFUSED, *TAKEN, "engine", "environment"}
    assert named == {field.name for field in fields(EngineSpec)}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_num_seqs": 57}, "max_num_seqs is 57; llama.cpp runs at most 56"),
        ({"block_size": 0}, "block_size is 0; use 1 or more"),
        ({"gpu_layers": 3}, "gpu_layers is set; it needs a profile for a GPU"),
        ({"n_threads": 3}, "'n_threads' is unknown; did you mean 'num_threads'"),
        ({"grammar_timeout_s": 0}, "grammar_timeout_s is 0"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(EngineStartError, match=reason):
        LlamaCppConfig.from_options({"model_dir": "/nowhere", **options})


def test_the_model_of_a_folder_is_found(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match="is neither a GGUF file nor a folder with one"):
        LlamaCppConfig(tmp_path).model_path  # noqa: B018
    for name in ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf"):
        (tmp_path / name).touch()
    first = tmp_path / "a-00001-of-00002.gguf"
    assert LlamaCppConfig(tmp_path).model_path == LlamaCppConfig(first).model_path == first
    (tmp_path / "b.gguf").touch()
    with pytest.raises(EngineStartError, match="several GGUF models"):
        LlamaCppConfig(tmp_path).model_path  # noqa: B018
