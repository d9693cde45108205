"""What a GGUF file says of its model."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from profiles.catalogue.catalogue import Catalogue
from profiles.checkpoints import gguf
from profiles.checkpoints.checkpoint import Checkpoint
from profiles.errors import ModelStoreError
from profiles.store.custom_shape import find
from profiles.store.store import folder_of, resolve, to_fetch

HEAD: dict[str, Any] = {
    "general.architecture": "gpt-oss",
    "general.name": "Gpt Oss",
    "tokenizer.ggml.tokens": ["a", "bc", ""],
    "tokenizer.ggml.token_type": [1, 2, 3],
    "gpt-oss.block_count": 24,
    "gpt-oss.context_length": 131072,
    "gpt-oss.embedding_length": 2880,
    "gpt-oss.attention.head_count": 64,
    "gpt-oss.attention.head_count_kv": 8,
    "gpt-oss.attention.key_length": 64,
    "gpt-oss.attention.sliding_window": 128,
    "gpt-oss.attention.layer_norm_rms_epsilon": 1e-5,
    "gpt-oss.expert_count": 32,
    "gpt-oss.expert_used_count": 4,
    "gpt-oss.expert_feed_forward_length": 2880,
    "general.file_type": 38,
}


def written(head: dict[str, Any]) -> bytes:
    """The head of a GGUF file, version 3, without tensors."""
    body = b"".join(string(key) + value(each) for key, each in head.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(head)) + body


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def value(each: Any) -> bytes:
    if isinstance(each, str):
        return struct.pack("<I", 8) + string(each)
    if isinstance(each, float):
        return struct.pack("<If", 6, each)
    if isinstance(each, int):
        return struct.pack("<II", 4, each)
    if isinstance(each[0], str):
        return struct.pack("<IIQ", 9, 8, len(each)) + b"".join(map(string, each))
    return struct.pack("<IIQ", 9, 5, len(each)) + struct.pack(f"<{len(each)}i", *each)


def test_the_head_says_what_config_json_would(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(written(HEAD))
    assert gguf.config_of(path) == {
        "model_type": "gpt_oss",
        "num_hidden_layers": 24,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "max_position_embeddings": 131072,
        "vocab_size": 3,
        "gguf_type": 38,
        "gguf_bytes": path.stat().st_size,
    }


def test_another_architecture_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(written({"general.architecture": "llama", "llama.block_count": 2}))
    assert gguf.config_of(path)["model_type"] == "llama"


@pytest.mark.parametrize("num_bytes", [0, 3, 10, 30, 200])
def test_a_cut_file_is_refused(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(written(HEAD)[:num_bytes])
    with pytest.raises(ModelStoreError, match=r"model.gguf is not a complete GGUF file"):
        gguf.config_of(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"PK" + b"\0" * 99, "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "its version is 9"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 40), "a string of it has 1099511627776"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("k") + struct.pack("<I", 77), "type 77"),
    ],
)
def test_what_is_no_gguf_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelStoreError, match=reason):
        gguf.config_of(path)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], None),
        (["model.gguf"], "model.gguf"),
        (["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"], "a-00001-of-00002.gguf"),
        (["gpt-oss-20b-mxfp4.gguf", "config.json"], "gpt-oss-20b-mxfp4.gguf"),
        (["config.json", "Q4/b-00001-of-00001.gguf"], "b-00001-of-00001.gguf"),
    ],
)
def test_the_model_of_a_folder(tmp_path: Path, names: list[str], found: str | None) -> None:
    (tmp_path / "Q4").mkdir()
    for name in names:
        (tmp_path / name).touch()
    first = gguf.first_file(tmp_path)
    assert (first and first.name) == found


def test_a_file_is_one_model_of_its_folder(tmp_path: Path) -> None:
    for name in ("a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf"):
        (tmp_path / name).touch()
    assert gguf.first_file(tmp_path / "a.gguf") == tmp_path / "a.gguf"
    second = tmp_path / "b-00002-of-00002.gguf"
    assert gguf.first_file(second) == tmp_path / "b-00001-of-00002.gguf"


@pytest.mark.parametrize(
    ("file_type", "num_bytes", "precision"),
    [
        (0, 84, "fp32"),
        (38, 12, "mxfp4"),
        (1, 14, "mxfp4"),  # gpt-oss as "F16": its experts are MXFP4 all the same
        (32, 42, "bf16"),
        (15, 12, "mxfp4"),  # Q4_K_M
        (None, 42, "bf16"),
    ],
)
def test_where_its_type_does_not_say_a_model_is_what_it_weighs(
    file_type: int | None, num_bytes: int, precision: str
) -> None:
    assert gguf.precision_of(file_type, num_bytes, num_weights=21) == precision


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["a.gguf", "b.gguf"], r"several GGUF models \(a.gguf, b.gguf\); name one: /.*/a.gguf"),
        (["a-00001-of-00003.gguf", "a-00003-of-00003.gguf"], "a-00002-of-00003.gguf is missing"),
        (["a-00002-of-00002.gguf"], "not the first file"),
    ],
)
def test_a_folder_without_one_whole_model(tmp_path: Path, names: list[str], reason: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ModelStoreError, match=reason):
        gguf.first_file(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the GGUF file of gpt-oss-20b, as far as its head says."""
    return filled(tmp_path / "small", {"gpt-oss.vocab_size": 201_088})


def filled(folder: Path, changes: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "model.gguf").write_bytes(written(HEAD | changes))
    return folder


def test_a_gguf_file_is_served_by_llama_cpp_alone(folder: Path, catalogue: Catalogue) -> None:
    found = find(Checkpoint.open(folder), catalogue)
    assert found.model == catalogue.models["gpt-oss-20b"]
    assert {profile.engine for profile in found.profiles} == {"llama_cpp"}
    profile = next(p for p in found.profiles if p.model == found.model)
    assert resolve(profile, folder / "cache", folder) == folder


def test_the_file_itself_is_served_too(folder: Path, catalogue: Catalogue) -> None:
    (folder / "other.gguf").touch()
    path = folder / "model.gguf"
    found = find(Checkpoint.open(path), catalogue)
    assert found.model == catalogue.models["gpt-oss-20b"]
    profile = next(p for p in found.profiles if p.model == found.model)
    assert resolve(profile, folder / "cache", path) == path


def test_a_known_model_in_another_precision_is_served_in_that(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    folder = filled(tmp_path / "f32", {"gpt-oss.vocab_size": 201_088, "general.file_type": 0})
    found = find(Checkpoint.open(folder), catalogue)
    assert found.model.shape == catalogue.models["gpt-oss-20b"].shape
    assert "experts in fp32" in found.model.description
    served = {p.precision for p in found.profiles if p.model == found.model}
    assert served == {"fp32"}


def test_beside_a_checkpoint_both_are_served(folder: Path, catalogue: Catalogue) -> None:
    (folder / "model.safetensors").touch()
    engines = {profile.engine for profile in find(Checkpoint.open(folder), catalogue).profiles}
    assert engines == {profile.engine for profile in catalogue.profiles}


def test_another_shape_gets_the_generic_profiles(tmp_path: Path, catalogue: Catalogue) -> None:
    changes = {"gpt-oss.block_count": 20, "gpt-oss.vocab_size": 201_088, "general.file_type": 0}
    found = find(Checkpoint.open(filled(tmp_path / "pruned", changes)), catalogue)
    assert (found.model.name, found.model.shape.num_hidden_layers) == ("pruned", 20)
    assert {(p.engine, p.precision) for p in found.profiles} == {("llama_cpp", "fp32")}


def test_what_is_shipped_otherwise_can_be_served_from_gguf(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    nano = catalogue.models["nano"].shape.model_dump()
    head = {f"gpt-oss.{theirs}": nano[ours] for ours, theirs in gguf._KEYS.items()}
    found = find(Checkpoint.open(filled(tmp_path / "nano", head)), catalogue)
    assert found.model == catalogue.models["nano"]
    assert "llama_cpp-cpu-mxfp4-tp1-pp1-balanced" in {p.name for p in found.profiles}


def test_a_profile_needs_its_own_files(tmp_path: Path, catalogue: Catalogue) -> None:
    model = catalogue.models["gpt-oss-20b"]
    profiles = [profile for profile in catalogue.profiles if profile.model == model]
    for profile in profiles:
        is_gguf = profile.engine == "llama_cpp"
        assert profile.artifacts == (model.gguf if is_gguf else model.artifacts)
        names = {file.name for file in to_fetch(profile, tmp_path)}
        assert ("gpt-oss-20b-mxfp4.gguf" in names, "config.json" in names) == (is_gguf, not is_gguf)
    assert len({folder_of(profile, tmp_path) for profile in profiles}) == 2


def test_a_folder_without_gguf_is_nothing_for_llama_cpp(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    shape = catalogue.models["gpt-oss-20b"].shape.model_dump()
    (tmp_path / "config.json").write_text(json.dumps(shape))
    profile = next(
        p for p in catalogue.profiles if p.engine == "llama_cpp" and p.model.name == "gpt-oss-20b"
    )
    with pytest.raises(ModelStoreError, match=r"has no \*.gguf file"):
        resolve(profile, tmp_path / "cache", tmp_path)
