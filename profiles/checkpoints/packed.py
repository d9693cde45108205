"""A checkpoint whose shards were deleted, as packed weights hold all of them.

`packed.json` beside config.json names the shards with size and time, by which packed weights are
known to be of this checkpoint, and has the digest by which engines that hand K/V over know their
weights to be equal. Deleting it makes the checkpoint one that lacks its shards.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import msgspec

from profiles.checkpoints.regular_file import read_bounded
from profiles.errors import ModelStoreError

PACKED: Final = "packed.json"
_MAX_BYTES: Final = 1 << 20


class _Note(msgspec.Struct):
    shards: dict[str, list[int]]


_decode: Final = msgspec.json.Decoder(_Note).decode


def replaced(folder: Path) -> dict[str, list[int]]:
    """The shards that are not there any more: bytes and time in whole seconds, by name."""
    try:
        return _decode(read_bounded(folder / PACKED, _MAX_BYTES)).shards
    except (ModelStoreError, ValueError, RecursionError, msgspec.MsgspecError):
        return {}


def delete_shards(folder: Path, digest: str) -> int:
    """Delete the shards of a folder once packed weights replace them; return the bytes freed.

    `digest`: of the checkpoint, as engines/native/checkpoint_digest.py makes it.
    """
    shards = sorted(folder.glob("*.safetensors"))
    facts = {path.name: path.stat() for path in shards}
    named = {name: [fact.st_size, int(fact.st_mtime)] for name, fact in facts.items()}
    unfinished = folder / f".{PACKED}"
    noted = {"shards": {**replaced(folder), **named}, "digest": digest}
    unfinished.write_text(json.dumps(noted, indent=1))
    unfinished.rename(folder / PACKED)  # before any is deleted: a start in between has both
    for path in shards:
        path.unlink()
    return sum(fact.st_size for fact in facts.values())
