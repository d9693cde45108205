"""The bytes of every token, which grammars need; the engine knows no text otherwise.

The file is in tiktoken's format: a line `<base64 of the bytes> <id>` per token that spells
text. Ids without a line are control tokens.
"""

from __future__ import annotations

import functools
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from engines.errors import EngineStartError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_MARKER: Final = b"\xff"  # no text has this byte; llguidance knows control tokens by it


@functools.lru_cache(maxsize=1)
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
            f"{path}: is not a vocabulary of {vocab_size} tokens: {error}"
        ) from error
    return vocabulary


@functools.lru_cache(maxsize=1)
def load_tokenizer(path: Path, vocab_size: int) -> LLTokenizer:
    """llguidance's view of the vocabulary; raises EngineStartError naming what is missing.

    It takes about 0.9 s, in which the library keeps the interpreter: it is made while an engine
    starts, since later it would hold up every request.
    """
    return tokenizer_of(read_vocabulary(path, vocab_size))


def tokenizer_of(vocabulary: Sequence[bytes]) -> LLTokenizer:
    """Make a tokenizer of these bytes; the last id, which spells nothing, ends the answer."""
    try:
        import llguidance
    except ImportError as error:
        raise EngineStartError(f"llguidance cannot be imported: {error}") from error
    spelt: Any = _Vocabulary(vocabulary)
    slices = llguidance.LLTokenizer.general_slices()
    return llguidance.LLTokenizer(spelt, n_vocab=len(vocabulary), slices=slices)


class _Vocabulary:
    """What LLTokenizer reads."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Sequence[bytes]) -> None:
        self.eos_token_id = len(vocabulary) - 1
        self.special_token_ids = [id for id, spelt in enumerate(vocabulary) if not spelt]
        self.tokens = [spelt or b"%s<%d>" % (_MARKER, id) for id, spelt in enumerate(vocabulary)]

    def __call__(self, text: bytes) -> NoReturn:
        raise AssertionError("a grammar without forced text needs no tokenizer")
