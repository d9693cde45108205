"""What parts of an artefact depend on, found without loading torch."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

PACKED: Final = "packed.json"


def checkpoint_facts(model_dir: Path) -> dict[str, Any]:
    """The checksum of config.json, and of each file of weights its size and time in seconds, also
    of those that packed weights replace.

    Whole seconds, as archives and layers of images keep no others.
    """
    files: dict[str, list[int]] = dict(replaced_shards(model_dir))
    for path in sorted(model_dir.glob("*.safetensors*")):
        stat = path.stat()
        files[path.name] = [stat.st_size, int(stat.st_mtime)]
    config = (model_dir / "config.json").read_bytes()
    return {"config": hashlib.sha256(config).hexdigest(), "files": files}


def replaced_shards(model_dir: Path) -> dict[str, list[int]]:
    """Size and time of the shards that were deleted once packed weights replaced them.

    profiles/checkpoints/packed.py writes the file; this package imports nothing of that one.
    """
    found: dict[str, list[int]] = _packed(model_dir).get("shards", {})
    return found


def digest_of_replaced(model_dir: Path) -> str | None:
    """The checkpoint_digest() of these shards, if it was noted."""
    digest: str | None = _packed(model_dir).get("digest")
    return digest


def _packed(model_dir: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((model_dir / PACKED).read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def versions(*packages: str) -> dict[str, str | None]:
    """The installed version of each of these packages; None for one that is not installed."""
    return {package: _version(package) for package in packages}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def sources_digest(folder: Path) -> str:
    """A digest of all Python files below a folder: compiled code belongs to its source."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def short_digest(value: Any) -> str:
    """Sixteen hexadecimal digits of the hash of a value of plain JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
