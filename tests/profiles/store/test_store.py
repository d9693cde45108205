"""The model store: expanded once, complete or refused, and the remedy named."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from profiles.catalogue.catalogue import Catalogue
from profiles.catalogue.models import ArtifactFile, Artifacts, Profile
from profiles.checkpoints import compact
from profiles.checkpoints.checkpoint import Checkpoint
from profiles.checkpoints.packed import delete_shards
from profiles.download.verified import NAME as VERIFIED
from profiles.errors import ModelStoreError
from profiles.store.store import content_hash, expand_once, resolve, to_fetch


def shard(*tensors: str, num_bytes: int = 8) -> bytes:
    """A safetensors file whose tensors hold `num_bytes` each."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for i, name in enumerate(tensors):
        span = [i * num_bytes, (i + 1) * num_bytes]
        header[name] = {"dtype": "U8", "shape": [num_bytes], "data_offsets": span}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(num_bytes * len(tensors))


def _index(name: object) -> bytes:
    return json.dumps({"weight_map": {"a": name}}).encode()


def _header_of(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


@pytest.fixture
def files(catalogue: Catalogue) -> dict[str, bytes]:
    """A checkpoint of gpt-oss-20b's shape with hardly any weights."""
    config = catalogue.models["gpt-oss-20b"].shape.model_dump()
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model-1.safetensors": shard("a"),
        "model-2.safetensors": shard("b"),
    }


@pytest.fixture
def profile(catalogue: Catalogue, files: dict[str, bytes]) -> Profile:
    """A profile of gpt-oss-20b whose published files are the small ones."""
    listed = tuple(
        ArtifactFile(name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in files.items()
    )
    artifacts = Artifacts(repository="openai/gpt-oss-20b", revision="abc", files=listed)
    small = catalogue.models["gpt-oss-20b"].model_copy(update={"artifacts": artifacts})
    found = profile_of(catalogue, "gpt-oss-20b")
    return found.model_copy(update={"model": small})


def profile_of(catalogue: Catalogue, model: str) -> Profile:
    profiles = (p for p in catalogue.profiles if p.model.name == model)
    return next(profile for profile in profiles if profile.engine == "native")


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_a_complete_cache_is_used_and_hashed_once(
    tmp_path: Path, profile: Profile, files: dict[str, bytes]
) -> None:
    folder = fill(tmp_path / "models" / "gpt-oss-20b", files)
    assert resolve(profile, tmp_path) == folder
    verified = json.loads((folder / VERIFIED).read_text())
    assert set(verified) == set(files)
    # Nothing is hashed again: a file that kept size and time is taken as it was.
    path = folder / "model-1.safetensors"
    stat = path.stat()
    path.write_bytes(shard("x"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert resolve(profile, tmp_path) == folder


def test_missing_files_are_named_with_the_command_that_gets_them(
    tmp_path: Path, profile: Profile, files: dict[str, bytes]
) -> None:
    folder = fill(tmp_path / "models" / "gpt-oss-20b", files)
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(ModelStoreError) as caught:
        resolve(profile, tmp_path)
    message = str(caught.value)
    assert f"{folder} lacks 1 of 4 files: model-2.safetensors" in message
    assert "hf download openai/gpt-oss-20b config.json" in message
    assert f"--revision abc --local-dir {folder}" in message
    assert "NIM_MODEL_PATH" in message


def test_packed_weights_replace_shards_for_the_engine_that_reads_them(
    tmp_path: Path, catalogue: Catalogue, files: dict[str, bytes], profile: Profile
) -> None:
    def of(engine: str) -> Profile:
        kinds = [p for p in catalogue.profiles if p.model.name == "gpt-oss-20b"]
        found = next(p for p in kinds if p.engine == engine and p.gpu is not None)
        return found.model_copy(update={"model": profile.model})

    folder = fill(tmp_path / "models" / "gpt-oss-20b", files)
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    delete_shards(folder, "of these")
    assert resolve(of("native"), tmp_path) == folder
    assert to_fetch(of("native"), tmp_path) == []
    assert sorted(file.name for file in to_fetch(of("vllm"), tmp_path)) == shards
    with pytest.raises(ModelStoreError, match="lacks 2 of 4 files"):
        resolve(of("vllm"), tmp_path)
    (folder / "packed.json").write_text("{")
    assert sorted(file.name for file in to_fetch(of("native"), tmp_path)) == shards


def test_an_empty_cache_names_everything(tmp_path: Path, catalogue: Catalogue) -> None:
    profile = profile_of(catalogue, "gpt-oss-120b")
    with pytest.raises(ModelStoreError, match=r"lacks 22 of 22 files: .*model-00014-of-00014"):
        resolve(profile, tmp_path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (shard("b")[:-1], r"model-2\.safetensors has \d+ bytes instead of \d+"),
        (shard("c"), r"model-2\.safetensors has SHA-256 [0-9a-f]{64} instead of"),
    ],
)
def test_a_truncated_or_altered_file_is_refused(
    tmp_path: Path, profile: Profile, files: dict[str, bytes], content: bytes, complaint: str
) -> None:
    fill(tmp_path / "models" / "gpt-oss-20b", {**files, "model-2.safetensors": content})
    with pytest.raises(ModelStoreError, match=complaint):
        resolve(profile, tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model-2.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_are_not_read(
    tmp_path: Path, profile: Profile, files: dict[str, bytes], name: str, kind: str
) -> None:
    """Opening a pipe waits for ever, and /dev/zero never ends."""
    folder = fill(tmp_path / "mine", files)
    (folder / name).unlink()
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero")
    with pytest.raises(ModelStoreError, match=rf"{name} is not a regular file"):
        resolve(profile, tmp_path / "cache", folder)


def test_a_bundled_model_that_was_changed_in_the_cache_is_expanded_again(
    tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_expanded = 0

    def expand(source: Path, target: Path) -> None:
        nonlocal num_expanded
        num_expanded += 1
        (target / "config.json").write_text("{}")
        (target / "model.safetensors").write_bytes(shard("a"))

    monkeypatch.setattr(compact, "expand", expand)
    profile = profile_of(catalogue, "nano")
    folder = resolve(profile, tmp_path)
    path = folder / "model.safetensors"
    os.utime(path)  # as after a copy: the same bytes
    assert (resolve(profile, tmp_path), num_expanded) == (folder, 1)
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    assert (resolve(profile, tmp_path), num_expanded) == (folder, 2)
    assert path.read_bytes() == shard("a")


def test_an_operators_folder_may_hold_a_fine_tune(
    tmp_path: Path, profile: Profile, files: dict[str, bytes]
) -> None:
    tuned = {**files, "model-2.safetensors": shard("b", "extra", num_bytes=64)}
    folder = fill(tmp_path / "mine", tuned)
    assert resolve(profile, tmp_path / "cache", folder) == folder


def test_an_operators_folder_may_hold_one_file_without_an_index(
    tmp_path: Path, profile: Profile, files: dict[str, bytes]
) -> None:
    single = {"config.json": files["config.json"], "model.safetensors": shard("a", "b")}
    folder = fill(tmp_path / "mine", single)
    assert resolve(profile, tmp_path / "cache", folder) == folder


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"config.json": None}, r"config\.json cannot be read: No such file"),
        ({"config.json": b"{"}, r"config\.json is not valid JSON"),
        ({"config.json": b"[]"}, r"config\.json must hold a JSON object"),
        ({"config.json": b"{}"}, r"config\.json is not gpt-oss-20b's: num_hidden_layers is None"),
        ({"model.safetensors.index.json": None}, r"has neither model\.safetensors\.index\.json"),
        ({"model.safetensors.index.json": b'{"weight_map": {}}'}, r"it has an empty weight_map"),
        ({"model.safetensors.index.json": b"{}"}, r"missing required field `weight_map`"),
        ({"config.json": b"[" * 100_000}, r"config\.json is nested too deep"),
        (
            {"model.safetensors.index.json": b'{"weight_map": []}'},
            r"Expected `object`, got `array` - at `\$.weight_map`",
        ),
        (
            {"model.safetensors.index.json": _index(7)},
            r"Expected `str`, got `int`",
        ),
        (
            {"model.safetensors.index.json": _index("../x.safetensors")},
            r"'\.\./x.safetensors', which is outside the model's folder",
        ),
        (
            {"model.safetensors.index.json": _index("/etc/passwd")},
            r"'/etc/passwd', which is outside the model's folder",
        ),
        (
            {"model-2.safetensors": _header_of(b'{"a":' * 100_000)},
            r"header that is nested too deep",
        ),
        ({"model-2.safetensors": None}, r"model-2\.safetensors cannot be read"),
        ({"model-2.safetensors": shard("b")[:-1]}, r"bytes, but its header says"),
        ({"model-2.safetensors": shard("c")}, r"model-2\.safetensors lacks tensor 'b'"),
        ({"model-2.safetensors": b"GGUF"}, r"is not a safetensors file"),
        # The first bytes of a foreign file behind a link are not told, as a number neither.
        ({"model-2.safetensors": b"\xff" * 64}, r"header would have more than 16,777,216 bytes"),
        ({"model-2.safetensors": struct.pack("<Q", 4) + b"[{}]"}, r"is not a safetensors file"),
    ],
)
def test_what_is_wrong_with_an_operators_folder_is_named(
    tmp_path: Path,
    profile: Profile,
    files: dict[str, bytes],
    changes: dict[str, bytes | None],
    complaint: str,
) -> None:
    whole = {**files, **changes}
    folder = fill(
        tmp_path / "mine", {name: text for name, text in whole.items() if text is not None}
    )
    with pytest.raises(ModelStoreError, match=complaint):
        resolve(profile, tmp_path / "cache", folder)


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path, profile: Profile) -> None:
    with pytest.raises(ModelStoreError, match=r"NIM_MODEL_PATH is .*/nowhere, which is not there"):
        resolve(profile, tmp_path, tmp_path / "nowhere")
    with pytest.raises(ModelStoreError, match=r"or to hf://openai/gpt-oss-20b if you mean the hub"):
        resolve(profile, tmp_path, Path("openai/gpt-oss-20b"))


def test_a_folder_that_this_user_may_not_open_is_named(closed_folder: Path) -> None:
    with pytest.raises(ModelStoreError, match=r"cannot be read: Permission denied; NIM_MODEL_PATH"):
        Checkpoint.open(closed_folder)


def test_an_empty_folder_is_taken_for_a_volume_that_is_not_mounted(tmp_path: Path) -> None:
    with pytest.raises(ModelStoreError, match="is empty; mount the volume"):
        Checkpoint.open(tmp_path)


def test_many_starts_at_once_expand_once(tmp_path: Path) -> None:
    calls: list[Path] = []
    ready = threading.Barrier(8)
    found: list[Path] = []

    def expand(target: Path) -> None:
        calls.append(target)
        (target / "config.json").write_text("{}")

    def start() -> None:
        ready.wait(timeout=60)
        found.append(expand_once(tmp_path, "nano-1", expand))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(calls) == 1
    assert found == [tmp_path / "models" / "nano-1"] * 8
    assert (found[0] / "config.json").read_text() == "{}"
    assert expand_once(tmp_path, "nano-1", expand) == found[0]
    assert len(calls) == 1


@pytest.mark.heavy
def test_a_start_that_died_half_way_leaves_nothing_behind(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "from profiles.store.store import expand_once\n"
        "def expand(target):\n"
        "    (target / 'half').write_text('x'); os._exit(9)\n"
        "expand_once(Path(sys.argv[1]), 'nano-1', expand)\n"
    )
    died = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert died.returncode == 9
    assert not (tmp_path / "models" / "nano-1").exists()
    folder = expand_once(tmp_path, "nano-1", lambda target: (target / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]
    assert [path for path in (tmp_path / "models").iterdir() if path.is_dir()] == [folder]


def test_a_failed_expansion_is_not_taken_for_a_model(tmp_path: Path) -> None:
    def fail(target: Path) -> None:
        (target / "half").touch()
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        expand_once(tmp_path, "nano-1", fail)
    assert [path for path in (tmp_path / "models").iterdir() if path.is_dir()] == []


def test_a_cache_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        ModelStoreError, match="set NIM_CACHE_PATH to a folder that this user can write to"
    ):
        expand_once(tmp_path / "file", "nano-1", lambda _: None)


def test_what_is_shipped_is_named_by_its_content(tmp_path: Path) -> None:
    source = fill(tmp_path / "shipped", {"weights": b"1", "config.json": b"{}"})
    before = content_hash(source)
    assert content_hash(source) == before
    (source / "weights").write_bytes(b"2")
    assert content_hash(source) != before
    (source / "weights").write_bytes(b"1")
    (source / "more").touch()
    assert content_hash(source) != before


def test_nano_becomes_an_ordinary_checkpoint_and_a_whole_one_again(
    tmp_path: Path, catalogue: Catalogue, nano_cache: Path
) -> None:
    nano = next(p for p in catalogue.profiles if p.model.name == "nano")
    shutil.copytree(nano_cache, tmp_path, dirs_exist_ok=True)  # to expand it takes seconds
    folder = resolve(nano, tmp_path)
    assert folder.parent == tmp_path / "models"
    assert resolve(nano, tmp_path) == folder
    # What was expanded passes the checks of a folder that an operator gives.
    assert resolve(nano, tmp_path / "other", folder) == folder

    file = folder / "model.safetensors"
    size_bytes = file.stat().st_size
    os.truncate(file, size_bytes // 2)
    (folder / "left-over").write_text("of an older folder")
    assert resolve(nano, tmp_path) == folder
    assert file.stat().st_size == size_bytes
    names = ["config.json", "generation_config.json", "model.safetensors"]
    assert sorted(path.name for path in folder.iterdir() if path.name[0] != ".") == names
    assert [path for path in folder.parent.iterdir() if path.suffix != ".lock"] == [folder]
