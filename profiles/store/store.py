"""The model store: the checkpoint folder that a profile's engine is started on.

A model shipped with the package is expanded once into the cache, under a name that
holds the hash of what was shipped, so that an upgrade expands it again. Other models are
fetched, or put there by an operator: in the cache they must be exactly the published ones; in
a folder of the operator's own they may be a fine-tune, so there the shape must be the
model's (profiles/store/custom_shape.py says which model that is) and every shard whole.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.catalogue.models import ArtifactFile, Artifacts, Model, ModelShape, Profile
from profiles.checkpoints.checkpoint import Checkpoint, check_shards, hash_file, read_json
from profiles.checkpoints.packed import replaced
from profiles.download.fetch import GUEST, fetch, missing
from profiles.download.source import FileToFetch, NgcAccess, source_of
from profiles.download.verified import Verified
from profiles.errors import ModelStoreError
from profiles.hardware.machine import GB
from profiles.store.custom_shape import CustomShape
from profiles.volume.locks import alone

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fetching:
    """Whether missing files may be fetched, and from where if not from their repository."""

    is_allowed: bool = False
    override: str | None = None  # as NIM_REPOSITORY_OVERRIDE is written
    ngc: NgcAccess = GUEST


NO_FETCHING = Fetching()


def resolve(
    profile: Profile,
    cache_dir: Path,
    model_path: Path | None = None,
    fetching: Fetching = NO_FETCHING,
) -> Path:
    """Return the checkpoint folder for `profile`, expanding, fetching or checking it first.

    Raises ModelStoreError naming the file that is missing or wrong and the remedy.
    """
    model, artifacts = profile.model, profile.artifacts
    if model_path is not None:
        return _operators_folder(profile, model_path)
    if artifacts is None:
        return _bundled_folder(profile, cache_dir)
    folder = folder_of(profile, cache_dir)
    artifacts = _without_replaced(profile, artifacts, folder)
    if fetching.is_allowed and missing(artifacts.files, folder):
        source = source_of(artifacts, fetching.override)
        fetch(model.name, artifacts.files, folder, source, fetching.ngc)
    _check_files(artifacts, folder)
    _check_shape(model, Checkpoint.open(folder))
    return folder


def folder_of(profile: Profile, cache_dir: Path) -> Path:
    """Return the folder in which the cache keeps a model that the package does not ship."""
    name = f"{profile.model.name}-gguf" if profile.reads_gguf else profile.model.name
    return cache_dir / "models" / name


def to_fetch(profile: Profile, cache_dir: Path) -> list[ArtifactFile]:
    """Return the model's files that the cache lacks; none for a model the package ships."""
    artifacts, folder = profile.artifacts, folder_of(profile, cache_dir)
    if artifacts is None:
        return []
    return missing(_without_replaced(profile, artifacts, folder).files, folder)


def _without_replaced(profile: Profile, artifacts: Artifacts, folder: Path) -> Artifacts:
    """Leave out the shards that packed weights replace, for the engine that reads those."""
    if profile.engine != "native" or profile.gpu is None:
        return artifacts
    gone = {name for name in replaced(folder) if not (folder / name).exists()}
    kept = tuple(file for file in artifacts.files if file.name not in gone)
    return artifacts.model_copy(update={"files": kept})


def damaged(files: Iterable[FileToFetch], folder: Path) -> list[str]:
    """Hash the files that are there; return those that are not the published ones."""
    there = [file for file in files if file.sha256 and (folder / file.name).is_file()]
    return [file.name for file in there if hash_file(folder / file.name) != file.sha256]


def expand_once(
    cache_dir: Path,
    name: str,
    expand: Callable[[Path], None],
    is_whole: Callable[[Path], bool] = Path.is_dir,
) -> Path:
    """Return cache_dir/models/name, filled by `expand` if it is not there yet, or not whole.

    Safe when several processes of any hosts start at once, and after a crash half-way: the folder
    appears under its name only when it is whole.
    """
    folder = cache_dir / "models" / name
    if is_whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with alone(folder.parent / f".{name}.lock", str(folder)):
            if not is_whole(folder):
                _expand_into(folder, expand)
    except OSError as error:
        raise ModelStoreError(
            f"cannot write to the model cache {folder.parent}: {error.strerror or error}; "
            f"set NIM_CACHE_PATH to a folder that this user can write to, with room for the model"
        ) from error
    return folder


def _expand_into(folder: Path, expand: Callable[[Path], None]) -> None:
    for left_over in folder.parent.glob(f".{folder.name}.*/"):  # of a start that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    unfinished = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    unfinished.mkdir()  # by the umask: the group may use it where that allows it
    try:
        expand(unfinished)
        if folder.exists():
            log.warning("%s is damaged; expanding it again", folder)
            shutil.rmtree(folder)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _bundled_folder(profile: Profile, cache_dir: Path) -> Path:
    model = profile.model
    if profile.reads_gguf:
        raise ModelStoreError(
            f"{model.name} is not shipped as GGUF, which {profile.name} is started on; set "
            "NIM_MODEL_PATH to a folder with its GGUF file, or choose another profile"
        )
    # Imported here: listing profiles must not wait for numpy.
    from profiles.checkpoints.compact import bundled_nano, expand

    source = bundled_nano()
    digest = content_hash(source)

    def expand_and_seal(target: Path) -> None:
        expand(source, target)
        Verified.seal(target)

    return expand_once(cache_dir, f"{model.name}-{digest[:16]}", expand_and_seal, _is_whole)


def _is_whole(folder: Path) -> bool:
    try:
        read_json(folder / "config.json")
        check_shards(folder)
    except ModelStoreError:
        return False
    verified = Verified(folder)
    if not verified.is_sealed:  # by a release that did not
        Verified.seal(folder)
        return True
    return verified.is_as_sealed()


def content_hash(source: Path) -> str:
    files = [source] if source.is_file() else sorted(p for p in source.rglob("*") if p.is_file())
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(source.parent)}\0{hash_file(path)}\n".encode())
    return digest.hexdigest()


def _operators_folder(profile: Profile, model_path: Path) -> Path:
    model, opened = profile.model, Checkpoint.open(model_path)
    if not isinstance(model.shape, CustomShape):  # that was read from this very folder
        _check_shape(model, opened)
    if profile.reads_gguf and not opened.has_gguf:
        raise ModelStoreError(
            f"{model_path} has no *.gguf file, which {profile.name} is started on; "
            "choose a profile of another engine"
        )
    if not profile.reads_gguf:
        check_shards(model_path)
    return model_path


def _check_shape(model: Model, opened: Checkpoint) -> None:
    if different := _differences(model.shape, opened.config):
        raise ModelStoreError(
            f"{opened.described_by} is not {model.name}'s: {'; '.join(different)}; "
            f"unset NIM_MODEL_NAME to serve what the folder holds, or give {model.name}'s folder"
        )


def _differences(shape: ModelShape, config: Mapping[str, Any]) -> list[str]:
    return [
        f"{key} is {config.get(key)}, {model} expected"
        for key, model in shape.model_dump().items()
        if config.get(key) != model
    ]


def _check_files(artifacts: Artifacts, folder: Path) -> None:
    """Check every published file: there, of the right size and with the right checksum."""
    if missing := [file.name for file in artifacts.files if not (folder / file.name).is_file()]:
        raise ModelStoreError(
            f"{folder} lacks {len(missing)} of {len(artifacts.files)} files: {', '.join(missing)}"
            f"\n{_remedy(artifacts, folder)}"
        )
    verified = Verified(folder)
    for file in artifacts.files:
        path = folder / file.name
        size = path.stat().st_size
        if size != file.size_bytes:
            raise ModelStoreError(
                f"{path} has {size:,} bytes instead of {file.size_bytes:,}; "
                f"delete it\n{_remedy(artifacts, folder)}"
            )
        if not verified.has(file):
            log.info("Checking %s (%.1f GB), once ...", path, file.size_bytes / GB)
            _check_sum(path, file.sha256, _remedy(artifacts, folder))
            verified.add(file)
    verified.save()


def _check_sum(path: Path, expected: str, remedy: str) -> None:
    actual = hash_file(path)
    if actual != expected:
        raise ModelStoreError(
            f"{path} has SHA-256 {actual} instead of {expected}; delete it\n{remedy}"
        )


def _remedy(artifacts: Artifacts, folder: Path) -> str:
    names = " ".join(file.name for file in artifacts.files)
    return (
        f"Get revision {artifacts.revision} of {artifacts.repository} with "
        f"`harmonium download-to-cache`, without NIM_DISABLE_MODEL_DOWNLOAD, or:\n"
        f"  hf download {artifacts.repository} {names} "
        f"--revision {artifacts.revision} --local-dir {folder}\n"
        f"or set NIM_MODEL_PATH to a folder that has the model already."
    )
