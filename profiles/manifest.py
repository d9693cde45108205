"""The catalogue as a NIM's model manifest: `python -m profiles.manifest FILE` writes it.

NIM's Kubernetes operator reads it from the image at /opt/nim/etc/default/model_manifest.yaml and
matches `tags` against what a NIMCache asks for; profile ids are those of NIM_MODEL_PROFILE.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from profiles.catalogue import Catalogue, load
from profiles.gpus import BY_KEY
from profiles.models import Model, Profile

SCHEMA = "2.0.0"


@cache
def text() -> str:
    """The manifest of the shipped catalogue."""
    return as_yaml(load())


def as_yaml(catalogue: Catalogue) -> str:
    """The file's text; profiles that cannot run yet are left out."""
    profiles = [profile for profile in catalogue.profiles if profile.status != "planned"]
    content = {
        "schema_version": SCHEMA,
        "profile_selection_criteria": "default",
        "profiles": [_profile(profile) for profile in profiles],
    }
    return yaml.safe_dump(content, sort_keys=False, width=1000)


def _profile(profile: Profile) -> dict[str, Any]:
    return {
        "id": profile.id,
        "tags": {
            **profile.tags,
            **_device(profile),
            "feat_lora": "false",
            "trtllm_buildable": "false",
        },
        "workspace": {"files": _files(profile.model)},
    }


def _device(profile: Profile) -> dict[str, str]:
    """The PCI id of the board that a profile names first."""
    names = profile.gpu.names if profile.gpu else ()
    devices = BY_KEY[names[0]].pci_devices if names else ()
    return {"gpu_device": f"{devices[0]}:10de"} if devices else {}


def _files(model: Model) -> dict[str, dict[str, str]]:
    """Each file by its name: from where, and its SHA-256; none for what the image has inside."""
    if model.artifacts is None:
        return {}
    place = f"hf://{model.artifacts.repository}:{model.artifacts.revision}"
    return {
        file.name: {"uri": f"{place}?file={file.name}", "sha256": file.sha256}
        for file in model.artifacts.files
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
