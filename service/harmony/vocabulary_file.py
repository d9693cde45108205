"""The vocabulary as a file, for engines that follow grammars and know no text themselves."""

from __future__ import annotations

import os
from base64 import b64encode
from pathlib import Path

from service.harmony.vocabulary import NUM_ORDINARY, decode_bytes

NAME = "o200k_base.tiktoken"


def write_vocabulary(folder: Path) -> Path:
    """Write the file unless it is there (about 0.5 s, 3.6 MB); return its path.

    It is the published o200k_base.tiktoken byte for byte: a line `<base64> <id>` per token.
    """
    path = folder / NAME
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{NAME}.{os.getpid()}"
    draft.write_bytes(b"".join(_line(token_id) for token_id in range(NUM_ORDINARY)))
    draft.replace(path)  # at once, so that nobody reads half of it
    return path


def _line(token_id: int) -> bytes:
    return b"%s %d\n" % (b64encode(decode_bytes(token_id)), token_id)
