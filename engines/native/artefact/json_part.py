"""Parts of one JSON file, checked by its SHA-256."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from engines.native.artefact.store import Checksums, Damaged, Part, Recipe, Store, StoredPart

_NUM_BYTES: Final = 1 << 20  # more than any takes

T = TypeVar("T")


def use_json(
    store: Store, part: Part, name: str, make: Callable[[], Any], parse: Callable[[Any], T]
) -> T:
    """Parse the part's file, making it first where it is not there, stale or damaged.

    NotKept if it can be neither found nor written.
    """

    def write(folder: Path) -> Checksums:
        text = json.dumps(make(), indent=1)
        (folder / name).write_text(text)
        return {name: _sha256(text)}

    def read(found: StoredPart) -> T:
        text = (found.folder / name).read_text(errors="replace")
        if _sha256(text) != found.checksums.get(name):
            raise Damaged(f"{name} has another checksum")
        return parse(json.loads(text))

    return store.use(part, Recipe(_NUM_BYTES, write), read)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
