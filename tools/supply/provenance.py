"""How an artefact was made, as the predicate of SLSA's provenance v1."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BUILD_TYPE = "urn:harmonium:build:make-attest:v1"
INPUTS = ("pyproject.toml", "constraints.txt", "Dockerfile")


def provenance(started: str, finished: str) -> dict[str, Any]:
    """Describe the build that ran here: the source, its pinned inputs, and who ran it."""
    commit = git("rev-parse", "HEAD")
    source = os.environ.get("SOURCE_URL") or git("config", "--get", "remote.origin.url")
    builder = os.environ.get("BUILDER_ID", "urn:harmonium:builder:local")
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"source": source, "ref": os.environ.get("GITHUB_REF", commit)},
            "internalParameters": {"isModified": bool(git("status", "--porcelain"))},
            "resolvedDependencies": [
                {"uri": source or "urn:harmonium:source", "digest": {"gitCommit": commit}},
                *(
                    {"uri": f"file:{name}", "digest": {"sha256": sha256(Path(name))}}
                    for name in INPUTS
                ),
            ],
        },
        "runDetails": {
            "builder": {"id": builder},
            "metadata": {
                "invocationId": os.environ.get("INVOCATION_ID", f"local:{commit}"),
                "startedOn": started,
                "finishedOn": finished,
            },
        },
    }


def git(*arguments: str) -> str:
    """What git says; empty where it says no."""
    command: Sequence[str] = ("git", *arguments)
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def sha256(path: Path) -> str:
    """The hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
