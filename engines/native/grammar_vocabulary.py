"""The bytes of every token, which grammars need; the engine knows no text otherwise.

The file is in tiktoken's format: a line `<base64 of the bytes> <id>` per token that spells
text. Ids without a line are control tokens.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import logging
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from engines.errors import EngineStartError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

log = logging.getLogger(__name__)

_MARKER: Final = b"\xff"  # no text has this byte; llguidance knows control tokens by it
_GRACE_S: Final = 1.0  # after the start, in which who has waited for it is told
_PAUSE_S: Final = 0.05  # between the pieces of making a tokenizer, for the steps of others


class LazyTokenizer:
    """llguidance's view of the vocabulary, made once: beside a long load (CoreRunner),
    else in an idle moment, or when first asked for.

    Making it takes about 1.2 s of which the library keeps the interpreter all but a moment: at a
    short start it would come too late for every request, later for the streams that run.
    """

    def __init__(
        self,
        path: Path,
        vocab_size: int,
        idle: asyncio.Event,
        beside: Callable[[], Awaitable[None]],
    ) -> None:
        self._path = path
        self._vocab_size = vocab_size
        self._idle = idle
        self._beside = beside  # what else is to be started then
        self._wanted = asyncio.Event()
        self._making: asyncio.Task[LLTokenizer] | None = None

    async def start(self) -> None:
        """Read the vocabulary's file, make the rest later; raises EngineStartError naming what is
        wrong."""
        if importlib.util.find_spec("llguidance") is None:
            raise EngineStartError(
                "llguidance is not installed, without which no grammar is followed"
            )
        await asyncio.to_thread(read_vocabulary, self._path, self._vocab_size)
        self._making = asyncio.create_task(self._made(), name="vocabulary")

    async def stop(self) -> None:
        """Cancel what is still to be made."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])

    async def get(self) -> LLTokenizer:
        """The tokenizer, made now unless it is there; raises EngineStartError naming what is
        missing."""
        assert self._making is not None
        self._wanted.set()
        return await asyncio.shield(self._making)

    async def _made(self) -> LLTokenizer:
        waiting = [asyncio.create_task(wait) for wait in (self._wanted.wait(), self._is_idle())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        await self._beside()
        try:
            return await asyncio.to_thread(load_tokenizer, self._path, self._vocab_size)
        except Exception:
            log.exception("Guided answers will fail")
            raise

    async def _is_idle(self) -> None:
        await asyncio.sleep(_GRACE_S)
        await self._idle.wait()


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
            f"{path}: is no vocabulary of {vocab_size} tokens: {error}"
        ) from error
    return vocabulary


@functools.lru_cache(maxsize=1)
def load_tokenizer(path: Path, vocab_size: int) -> LLTokenizer:
    """llguidance's view of the vocabulary; raises EngineStartError naming what is missing."""
    return tokenizer_of(read_vocabulary(path, vocab_size))


def tokenizer_of(vocabulary: Sequence[bytes]) -> LLTokenizer:
    """Make a tokenizer of these bytes; the last id, which spells nothing, ends the answer."""
    try:
        import llguidance
    except ImportError as error:
        raise EngineStartError(f"llguidance cannot be imported: {error}") from error
    spelt: Any = _Vocabulary(vocabulary)
    bare = llguidance.LLTokenizer(spelt, n_vocab=len(vocabulary), slices=[])
    time.sleep(_PAUSE_S)
    return bare.with_slices(llguidance.LLTokenizer.general_slices())


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
