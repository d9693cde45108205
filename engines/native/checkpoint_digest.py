"""Whether two folders hold the same checkpoint, found without reading all of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

from engines.native.artefact.identity import digest_of_replaced, replaced_shards
from engines.native.shard_header import read_header

_SAMPLE: Final = 4096  # bytes at the beginning, the middle and the end of each tensor


def checkpoint_digest(folder: Path) -> str:
    """A digest of config.json, of which tensors there are, and of some bytes of each.

    Where packed weights replaced the tensors' files, it is the one that these had.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files and (noted := digest_of_replaced(folder)) is not None:
        return noted
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    digest.update(json.dumps(sorted(replaced_shards(folder).items())).encode())
    for path in files:
        text, tensors, first = read_header(path)
        digest.update(path.name.encode() + b"\0" + text)
        with path.open("rb") as file:
            for tensor in tensors.values():
                begin, end = (first + at for at in tensor["data_offsets"])
                for at in (begin, (begin + end) // 2, max(end - _SAMPLE, begin)):
                    file.seek(at)
                    digest.update(file.read(min(_SAMPLE, end - at)))
    return digest.hexdigest()[:16]
