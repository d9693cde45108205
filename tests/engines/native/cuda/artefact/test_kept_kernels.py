"""What a start takes over from the one before it, or from the wheel: compiled kernels."""

from __future__ import annotations

import json
import logging
import mmap
import tarfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from engines.native.artefact.store import Store
from engines.native.backends.cuda.artefact import kept as artefact
from engines.native.backends.cuda.artefact.parts import kernels_of, kernels_part
from engines.native.config import ModelConfig, NativeConfig
from tests.engines.native.cuda.artefact.artefact_case import HOPPER, MODEL, files_of, folder_of

from engines.native.backends.cuda.artefact.kept import Artefact  # isort: skip
from engines.native.backends.cuda.offline.published import gpt_oss  # isort: skip
import triton  # isort: skip
from triton.runtime.cache import FileCacheManager, get_cache_manager  # isort: skip


def compile_something(name: str) -> None:
    """What Triton does for a kernel: files under a key, and a group that names them."""
    cache = FileCacheManager(name)
    group = {f"{name}.cubin": cache.put(b"machine code", f"{name}.cubin")}
    cache.put_group(f"{name}.json", group)


def compiled(name: str) -> dict[str, str] | None:
    group: dict[str, str] | None = FileCacheManager(name).get_group(f"{name}.json")
    return group


def test_compiled_kernels_are_found_by_the_next_start(config: NativeConfig) -> None:
    before = triton.knobs.cache.dir
    with Artefact(config, MODEL).kernels(HOPPER):
        assert compiled("attention") is None
        compile_something("attention")
    made = files_of(config)
    with Artefact(config, MODEL).kernels(HOPPER):
        found = compiled("attention")
        assert found is not None
        assert Path(found["attention.cubin"]).read_bytes() == b"machine code"
    assert files_of(config) == made
    assert triton.knobs.cache.dir == before
    assert not Path(found["attention.cubin"]).exists()


def test_kernels_compiled_later_join_the_others(config: NativeConfig) -> None:
    for name in ("attention", "router"):
        with Artefact(config, MODEL).kernels(HOPPER):
            compile_something(name)
    with Artefact(config, MODEL).kernels(HOPPER):
        assert compiled("attention")
        assert compiled("router")


def test_a_library_that_runs_is_not_written_again(config: NativeConfig) -> None:
    """What a loader has put into the pages of a library is lost when its file is cut off."""
    with Artefact(config, MODEL).kernels(HOPPER):
        compile_something("attention")
    with Artefact(config, MODEL).kernels(HOPPER):
        found = compiled("attention")
        assert found is not None
        with Path(found["attention.cubin"]).open("rb") as file:
            loaded = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        loaded[:7] = b"relocat"
        compile_something("router")
    assert loaded[:] == b"relocat code"
    loaded.close()


def test_nothing_is_kept_of_a_start_that_fails(config: NativeConfig) -> None:
    with pytest.raises(RuntimeError), Artefact(config, MODEL).kernels(HOPPER):  # noqa: PT012
        compile_something("attention")
        raise RuntimeError
    with Artefact(config, MODEL).kernels(HOPPER):
        assert compiled("attention") is None


def test_damaged_kernels_are_compiled_anew(config: NativeConfig) -> None:
    with Artefact(config, MODEL).kernels(HOPPER):
        compile_something("attention")
    path = folder_of(config, kernels_of(config, MODEL, HOPPER)) / "triton.tar"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"machine code", b"machine c0de"))
    with Artefact(config, MODEL).kernels(HOPPER):
        assert compiled("attention") is None
        compile_something("attention")
    assert path.read_bytes() != content.replace(b"machine code", b"machine c0de")
    with Artefact(config, MODEL).kernels(HOPPER):
        assert compiled("attention")


def test_kernels_are_shared_by_the_profiles_of_a_model(config: NativeConfig) -> None:
    part = kernels_of(config, MODEL, HOPPER)
    assert kernels_of(replace(config, max_num_seqs=8, max_model_len=64), MODEL, HOPPER) == part
    others = [
        kernels_of(config, MODEL, (10, 0)),
        kernels_of(replace(config, block_size=32), MODEL, HOPPER),
        kernels_of(config, replace(MODEL, num_local_experts=5), HOPPER),
    ]
    assert len({part.name, *(other.name for other in others)}) == 4
    assert part.identity["triton"] == version("triton")
    assert Store(Path("nowhere")).slot(part).why_not() == "is not there"


def test_kernels_compiled_for_a_shape_are_those_of_its_published_config(tmp_path: Path) -> None:
    """As in the config.json of gpt-oss-20b, whose defaults the package's own shapes spell out."""
    published = {
        "attention_bias": True, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2880, "intermediate_size": 2880, "max_position_embeddings": 131072,
        "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
        "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
        "rms_norm_eps": 1e-05, "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
        "layer_types": ["sliding_attention", "full_attention"] * 12, "vocab_size": 201088,
        "tie_word_embeddings": False,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn",
            "original_max_position_embeddings": 4096, "truncate": False,
        },
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(published))
    of_config = kernels_part(ModelConfig.from_dir(tmp_path), HOPPER)
    assert of_config == kernels_part(gpt_oss("20b"), HOPPER)


@pytest.fixture
def prebuilt(config: NativeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store as a wheel brings it: one kernel, and nobody may write."""
    folder = tmp_path / "prebuilt"
    made = replace(config, artefact_dir=folder)
    with Artefact(made, MODEL).kernels(HOPPER):
        compile_something("attention")
    monkeypatch.setattr(artefact, "PREBUILT", folder)
    for path in folder.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return folder


def test_pre_built_kernels_are_found_and_not_written_to(
    config: NativeConfig, prebuilt: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before = files_of(replace(config, artefact_dir=prebuilt))
    with Artefact(config, MODEL).kernels(HOPPER):
        assert compiled("attention")
    assert files_of(config) == {}  # nothing to keep beside them
    assert "ompil" not in caplog.text.replace("found or compiled", "")
    with Artefact(replace(config, artefact_dir=None), MODEL).kernels(HOPPER):
        assert compiled("attention")
    assert files_of(replace(config, artefact_dir=prebuilt)) == before


@pytest.mark.usefixtures("prebuilt")
def test_what_a_wheel_lacks_is_told_before_it_is_compiled_and_kept_apart(
    config: NativeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with Artefact(config, MODEL).kernels(HOPPER):
        assert get_cache_manager("5060").get_group("router.json") is None
        assert "Compiling missing kernels, first router.json" in caplog.text
        compile_something("router")
    assert "Compiled 1 kernels" in caplog.text
    with tarfile.open(folder_of(config, kernels_of(config, MODEL, HOPPER)) / "triton.tar") as kept:
        assert not [name for name in kept.getnames() if "attention" in name]
    caplog.clear()
    with Artefact(config, MODEL).kernels(HOPPER):
        assert compiled("attention")
        assert compiled("router")
    assert "Compiling" not in caplog.text


def test_kernels_that_two_profiles_compile_at_once_are_all_kept(config: NativeConfig) -> None:
    with Artefact(config, MODEL).kernels(HOPPER):
        compile_something("attention")
    first, second = (Artefact(config, MODEL).kernels(HOPPER) for _ in range(2))
    with first:
        with second:
            compile_something("router")
        compile_something("norm")
    with Artefact(config, MODEL).kernels(HOPPER):
        assert compiled("router")
        assert compiled("norm")
