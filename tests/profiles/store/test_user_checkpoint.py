"""NIM_MODEL_PATH as a URI: a place is listed once, and only what is served is fetched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from profiles.catalogue.catalogue import Catalogue
from profiles.checkpoints.checkpoint import Checkpoint
from profiles.download import fetch as fetching
from profiles.download.source import NgcAccess
from profiles.errors import DownloadError, ModelStoreError
from profiles.store.custom_shape import find
from profiles.store.store import Fetching
from profiles.store.user_checkpoint import UserCheckpoint, open_user
from tests.profiles.checkpoints.test_gguf import HEAD as HEAD_OF_20B
from tests.profiles.checkpoints.test_gguf import written
from tests.profiles.checkpoints.test_stored import header, tensors_of
from tests.profiles.hub import COMMIT, bucket_of, hub_of, serving
from tests.profiles.store.test_store import shard

ALLOWED = Fetching(is_allowed=True)
FILES = {
    "config.json": b'{"model_type": "gpt_oss"}',
    "model.safetensors.index.json": b'{"weight_map": {"a": "model-1.safetensors"}}',
    "model-1.safetensors": shard("a"),
}
BESIDE = {"README.md": b"#", "original/model-1.safetensors": b"x", "metal/model.bin": b"x"}
CHECKPOINT: Mapping[str, bytes] = {**FILES, **BESIDE}


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_PAUSE_S", 0.0)


def whole(found: UserCheckpoint, allowed: Fetching = ALLOWED) -> dict[str, bytes]:
    """What is in the folder once all is fetched."""
    found.obtain(allowed)
    assert found.to_fetch == ()
    return {p.name: p.read_bytes() for p in found.folder.iterdir() if p.name[0] != "."}


def test_a_repository_is_listed_once_at_the_commit_it_is_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({}) as served:
        hub_of(served, monkeypatch, CHECKPOINT)
        found = open_user("hf://acme/tuned", tmp_path, ALLOWED)
        assert found.name == "tuned"
        # The headers of the shards decide on the profile too; these are so small that all came.
        asked = [path.rpartition("/")[2] for path, _ in served.asked]
        assert sorted(asked) == sorted(FILES)
        assert {file.name for file in found.to_fetch} == {"model-1.safetensors"}
        assert whole(found) == FILES
        assert all(COMMIT in path for path, _ in served.asked)
        assert len(served.looked_up) == 1
    again = open_user("hf://acme/tuned", tmp_path, Fetching(is_allowed=False))  # no server
    assert again.folder == found.folder
    assert again.to_fetch == ()


def test_a_place_that_does_not_answer_is_asked_twice_and_the_remedy_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving({}) as served:
        hub_of(served, monkeypatch, CHECKPOINT)
    with pytest.raises(DownloadError, match="Check the network"):
        open_user("hf://acme/tuned", tmp_path, ALLOWED)
    assert caplog.text.count("trying again") == 1


def test_weights_with_another_checksum_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({}) as served:
        hub_of(served, monkeypatch, CHECKPOINT)
        name = f"acme/tuned/resolve/{COMMIT}/model-1.safetensors"
        served.files[name] = served.files[name][:-1] + b"?"
        with pytest.raises(DownloadError, match="was downloaded twice with another SHA-256"):
            whole(open_user("hf://acme/tuned", tmp_path, ALLOWED))


def test_a_web_server_is_asked_for_what_a_checkpoint_has(tmp_path: Path) -> None:
    with serving({f"m/{name}": content for name, content in FILES.items()}) as served:
        found = open_user(f"{served.url}/m", tmp_path, ALLOWED)
        assert found.name == "m"
        assert whole(found) == FILES


def test_a_bucket_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({}) as served:
        bucket_of(served, monkeypatch, CHECKPOINT)
        assert whole(open_user("s3://bucket/m", tmp_path, ALLOWED)) == FILES


def test_a_version_on_ngc_is_listed_and_fetched(tmp_path: Path) -> None:
    with serving({f"store/{name}": content for name, content in FILES.items()}) as served:
        entries = [{"path": name, "sizeInBytes": len(body)} for name, body in FILES.items()]
        base = "v2/org/acme/models"
        path = f"{base}/gpt/versions/1/files?page-size=1000&page-number=0"
        served.lists[path] = json.dumps({"modelFiles": entries}).encode()
        for name in FILES:
            address = {"urls": [f"{served.url}/store/{name}"]}
            served.lists[f"{base}/gpt/1/files?path={name}"] = json.dumps(address).encode()
        allowed = Fetching(True, ngc=NgcAccess("nvapi-1", served.url, served.url))
        assert whole(open_user("ngc://acme/gpt:1", tmp_path, allowed), allowed) == FILES


def tuned(catalogue: Catalogue, **changes: Any) -> dict[str, bytes]:
    """A merged fine-tune in two shards of 3 MB, which is less than their headers say."""
    shape = catalogue.models["gpt-oss-20b"].shape.model_dump()
    tensors = list(tensors_of(shape).items())
    shards = {"model-1.safetensors": dict(tensors[:40]), "model-2.safetensors": dict(tensors[40:])}
    index = {name: shard for shard, names in shards.items() for name in names}
    return {
        "config.json": json.dumps({"model_type": "gpt_oss", **shape, **changes}).encode(),
        "model.safetensors.index.json": json.dumps({"weight_map": index}).encode(),
        **{name: header(each) + bytes(3 << 20) for name, each in shards.items()},
    }


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The headers, of some 4 KB, take two requests each."""
    monkeypatch.setattr("profiles.store.user_checkpoint._HEADER_BYTES", 1 << 10)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 10)
    monkeypatch.setattr("profiles.download.mirror._CHUNK_BYTES", 1 << 10)


@pytest.mark.usefixtures("short_pieces")
def test_the_precision_of_a_repository_is_known_before_its_weights_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalogue: Catalogue
) -> None:
    with serving({}) as served:
        hub_of(served, monkeypatch, tuned(catalogue))
        found = open_user("hf://acme/tuned", tmp_path, ALLOWED)
        begun = sum(path.stat().st_size for path in (found.folder / ".partial").iterdir())
        assert 4 << 10 < begun < 64 << 10  # of 6 MB
        known = find(found.opened(), catalogue, found.name)
        served_by = [p for p in known.profiles if p.model == known.model and not p.is_rounded]
        assert {p.precision for p in served_by} == {"bf16"}
        num_asked = len(served.asked)
        open_user("hf://acme/tuned", tmp_path, ALLOWED)
        assert len(served.asked) == num_asked  # kept beside the list
    again = open_user("hf://acme/tuned", tmp_path, ALLOWED).opened().stored()
    assert again is not None
    assert (again.experts, again.num_layers) == (("BF16",), 24)


@pytest.mark.usefixtures("short_pieces")
def test_a_source_without_ranges_says_it_too(
    tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profiles.download.pieces.PIECE_BYTES", 1 << 20)  # shards are in pieces
    files = {f"m/{name}": content for name, content in tuned(catalogue).items()}
    with serving(files) as served:
        served.has_ranges = False
        stored = open_user(f"{served.url}/m", tmp_path, ALLOWED).opened().stored()
    assert stored is not None
    assert stored.precision == "bf16"


@pytest.mark.usefixtures("short_pieces")
def test_another_format_is_refused_before_its_weights_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalogue: Catalogue
) -> None:
    nvfp4 = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    with serving({}) as served:
        hub_of(served, monkeypatch, tuned(catalogue, **nvfp4))
        found = open_user("hf://acme/tuned", tmp_path, ALLOWED)
        num_asked = len(served.asked)
        for refused in (
            lambda: found.obtain(ALLOWED),
            lambda: find(found.opened(), catalogue, found.name),
        ):
            with pytest.raises(ModelStoreError, match=r"quantized as NVFP4 \(modelopt\).*MXFP4"):
                refused()
        assert len(served.asked) == num_asked


HEAD = written(HEAD_OF_20B | {"gpt-oss.vocab_size": 201_088})
GGUF = {
    "config.json": b"{}",
    "gpt-Q4.gguf": HEAD + b"q" * (3 << 20),
    "gpt-F16.gguf": HEAD + b"f" * 100,
    "BF16/gpt-BF16-00001-of-00002.gguf": HEAD,
    "BF16/gpt-BF16-00002-of-00002.gguf": b"b" * 100,
}


def test_one_gguf_model_of_a_repository_is_known_by_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalogue: Catalogue
) -> None:
    monkeypatch.setattr("profiles.store.user_checkpoint._HEAD_BYTES", 1 << 20)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 18)
    with serving({}) as served:
        hub_of(served, monkeypatch, GGUF)
        found = open_user("hf://acme/tuned?file=gpt-Q4.gguf", tmp_path, ALLOWED)
        assert [file.name for file in found.to_fetch] == ["gpt-Q4.gguf"]
        known = find(Checkpoint.open(found.folder), catalogue)
        assert known.model == catalogue.models["gpt-oss-20b"]
        assert {profile.engine for profile in known.profiles} == {"llama_cpp"}
        (begun,) = (found.folder / ".partial").iterdir()
        size = begun.stat().st_size
        assert 1 << 20 <= size < 2 << 20
        assert whole(found) == {"gpt-Q4.gguf": GGUF["gpt-Q4.gguf"]}
        asked = [asked for path, asked in served.asked if path.endswith("gpt-Q4.gguf")]
        assert asked == [
            None,
            f"bytes={size}-{len(GGUF['gpt-Q4.gguf']) - 1}",
        ]  # it goes on where the head ends
    again = open_user("hf://acme/tuned?file=gpt-Q4.gguf", tmp_path, Fetching(is_allowed=False))
    assert again.to_fetch == ()


def test_a_gguf_model_in_several_files_comes_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({}) as served:
        hub_of(served, monkeypatch, GGUF)
        uri = "hf://acme/tuned?file=BF16/gpt-BF16-00002-of-00002.gguf"  # any of them
        found = open_user(uri, tmp_path, ALLOWED)
        found.obtain(ALLOWED)
        found.opened().check_whole()
        names = [name for name in GGUF if name.startswith("BF16")]
        assert [(found.folder / name).read_bytes() for name in names] == [GGUF[n] for n in names]


def test_of_several_gguf_models_one_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({}) as served:
        hub_of(served, monkeypatch, GGUF)
        with pytest.raises(DownloadError, match="has several GGUF models; name one:") as caught:
            open_user("hf://acme/tuned", tmp_path, ALLOWED)
        assert "\n  hf://acme/tuned@main?file=gpt-Q4.gguf (3.1 MB)" in str(caught.value)
        with pytest.raises(DownloadError, match=r"has no gpt-Q5.gguf; name one:\n  hf://acme"):
            open_user("hf://acme/tuned?file=gpt-Q5.gguf", tmp_path, ALLOWED)


def test_the_address_of_a_gguf_file_is_enough(tmp_path: Path) -> None:
    with serving({"m/gpt.gguf": GGUF["gpt-F16.gguf"]}) as served:
        found = open_user(f"{served.url}/m/gpt.gguf", tmp_path, ALLOWED)
        assert whole(found) == {"gpt.gguf": GGUF["gpt-F16.gguf"]}
    with serving({}) as served, pytest.raises(DownloadError, match=r"/m, which has no gpt\.gguf"):
        open_user(f"{served.url}/m/gpt.gguf", tmp_path, ALLOWED)


def test_a_place_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with (
        serving({"m/config.json": b"{}"}) as served,
        pytest.raises(DownloadError, match=r"has no config.json with \*.safetensors beside it"),
    ):
        open_user(f"{served.url}/m", tmp_path, ALLOWED)


def test_where_fetching_is_forbidden_nobody_is_asked(tmp_path: Path) -> None:
    with serving({f"m/{name}": content for name, content in FILES.items()}) as served:
        with pytest.raises(ModelStoreError, match="NIM_DISABLE_MODEL_DOWNLOAD forbids"):
            open_user(f"{served.url}/m", tmp_path, Fetching(is_allowed=False))
        assert served.asked == []


@pytest.mark.parametrize("uri", ["hf://only-a-name", "ngc://acme/gpt", "s3://"])
def test_a_uri_that_cannot_be_read_names_the_setting(uri: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"NIM_MODEL_PATH is .*; write hf://"):
        open_user(uri, tmp_path, ALLOWED)


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert open_user(tmp_path, tmp_path / "cache", ALLOWED) == UserCheckpoint(tmp_path)
