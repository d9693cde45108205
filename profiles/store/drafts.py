"""The EAGLE3 head that a profile drafts with.

It is kept as a checkpoint that NIM_MODEL_PATH names is: at the catalogue's commit, with the
checksums that the hub lists for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiles.catalogue.models import Profile
from profiles.download.source import Source, read_source
from profiles.store.store import Fetching
from profiles.store.user_checkpoint import UserCheckpoint, open_user


def open_draft(profile: Profile, cache_dir: Path, fetching: Fetching) -> UserCheckpoint | None:
    """List the head's files, or read the list that is there; None for a profile without one.

    Raises ModelStoreError as `open_user` does.
    """
    if not profile.draft:
        return None
    source = str(_source(profile, fetching.override))
    setting = f"the draft head of {profile.title}"
    return open_user(source, cache_dir, fetching, setting=setting)


def with_folder(options: Mapping[str, Any], repository: str, folder: Path) -> dict[str, Any]:
    """Return the engine's options with the head's folder in place of its repository."""
    return {name: _replaced(value, repository, str(folder)) for name, value in options.items()}


def _source(profile: Profile, override: str | None) -> Source:
    """The repository on the hub, or under the mirror that holds all others."""
    if override is not None:
        mirror = read_source(override, "NIM_REPOSITORY_OVERRIDE")
        if mirror.scheme not in ("hf", "ngc"):  # those name one repository: the model's
            return Source(mirror.scheme, f"{mirror.location}/{profile.draft}")
    return Source("hf", profile.draft, profile.draft_revision)


def _replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, Mapping):
        return {name: _replaced(inner, old, new) for name, inner in value.items()}
    return new if value == old else value
