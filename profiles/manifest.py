"""The catalogue as a NIM's model manifest: `python -m profiles.manifest FILE` writes it.

NIM's Kubernetes operator reads it from the image at /opt/nim/etc/default/model_manifest.yaml and
matches `tags` against what a NIMCache asks for; profile ids are those of NIM_MODEL_PROFILE.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from profiles.catalogue.catalogue import Catalogue, load
from profiles.catalogue.models import Artifacts, Profile
from profiles.download.source import FileToFetch
from profiles.hardware.gpus import BY_KEY
from profiles.store.user_checkpoint import UserCheckpoint

# libyaml's takes a seventh of the time.
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
SCHEMA = "2.0.0"


@cache
def text() -> str:
    return as_yaml(load())


def as_yaml(catalogue: Catalogue) -> str:
    written = content(catalogue.profiles)
    text: str = yaml.dump(written, Dumper=_DUMPER, sort_keys=False, width=1000)
    return text


def content(profiles: Iterable[Profile], own: UserCheckpoint | None = None) -> dict[str, Any]:
    """Write the entries of a catalogue's manifest; profiles that cannot run yet are left out.

    `own`: a checkpoint that they serve in place of their model's files.
    """
    files = None if own is None else _files(own.place, own.files)
    return {
        "schema_version": SCHEMA,
        "profile_selection_criteria": "default",
        "profiles": [_profile(each, files) for each in profiles if each.status != "planned"],
    }


def _profile(profile: Profile, files: Mapping[str, Any] | None) -> dict[str, Any]:
    if files is None:
        files = _published(profile.artifacts)
    return {
        "id": profile.id,
        "tags": {
            **profile.tags,
            **_device(profile),
            "feat_lora": "false",
            "trtllm_buildable": "false",
        },
        "workspace": {"files": files},
    }


def _device(profile: Profile) -> dict[str, str]:
    """The PCI id of the board that a profile names first."""
    names = profile.gpu.names if profile.gpu else ()
    devices = BY_KEY[names[0]].pci_devices if names else ()
    return {"gpu_device": f"{devices[0]}:10de"} if devices else {}


def _published(artifacts: Artifacts | None) -> dict[str, dict[str, str]]:
    """The files of a repository; none for what the image has inside."""
    if artifacts is None:
        return {}
    place = f"hf://{artifacts.repository}:{artifacts.revision}"
    return _files(place, artifacts.files)


def _files(place: str, files: Iterable[FileToFetch]) -> dict[str, dict[str, str]]:
    """Return each file by its name: from where, and its SHA-256 if one is published."""
    return {
        file.name: {"uri": f"{place}?file={file.name}"}
        | ({"sha256": file.sha256} if file.sha256 else {})
        for file in files
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
