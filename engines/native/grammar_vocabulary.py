"""The bytes of every token, which grammars need; the engine knows no text otherwise.

The file is in tiktoken's format: a line `<base64 of the bytes> <id>` per token that spells
text. Ids without a line are control tokens.
"""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

from engines.errors import EngineStartError


def read_vocabulary(path: Path, vocab_size: int) -> list[bytes]:
    """Each token's bytes, b"" for control tokens; raises EngineStartError naming the file."""
    vocabulary = [b""] * vocab_size
    try:
        for line in path.read_bytes().splitlines():
            spelt, token_id = line.split()
            vocabulary[int(token_id)] = b64decode(spelt)
    except OSError as error:
        raise EngineStartError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, IndexError) as error:
        raise EngineStartError(
            f"{path}: is no vocabulary of {vocab_size} tokens: {error}"
        ) from error
    return vocabulary
