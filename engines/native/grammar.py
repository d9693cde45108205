"""Grammars: compiled beside the step loop, followed token by token inside it.

xgrammar is loaded when the first grammar comes, in the thread that compiles it.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from engines.base import EngineRequest
from engines.errors import EngineError, InvalidGrammar, QueueFull, RequestFailed
from engines.grammar.structural_tag import structural_tag
from engines.native.grammar_vocabulary import read_vocabulary

if TYPE_CHECKING:
    import xgrammar

MAX_GRAMMAR_BYTES: Final = 1_000_000  # of the tag's JSON
MAX_CACHED_BYTES: Final = 512 * 1024 * 1024  # of compiled grammars; a usual one has 9 MB
MAX_PENDING: Final = 64  # grammars waiting to be compiled
MAX_OVERDUE: Final = 2  # threads still busy with a grammar that was given up

_NUM_THREADS: Final = max(1, min(4, (os.cpu_count() or 1) // 2))  # the step loop has the rest

_Result = TypeVar("_Result")


class Guide:
    """One sequence's place in its grammar; belongs to the worker's thread."""

    __slots__ = ("_matcher",)

    def __init__(self, grammar: xgrammar.CompiledGrammar, stop_token_id: int) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(grammar, override_stop_tokens=[stop_token_id])

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write which tokens may follow: (ceil(vocab_size / 32)), all zero at a dead end."""
        self._matcher.fill_next_token_bitmask(mask[np.newaxis])

    def accept(self, token_id: int) -> None:
        """Step on; raises RuntimeError for a token that the mask excluded."""
        if not self._matcher.accept_token(token_id):
            raise RuntimeError(f"the grammar does not take the token {token_id}")


class GrammarCompiler:
    """Compiles grammars one at a time in a thread of their own; keeps those last used.

    All methods belong to one event loop.
    """

    def __init__(self, vocabulary_path: Path | None, vocab_size: int, timeout_s: float) -> None:
        self._vocabulary_path = vocabulary_path
        self._vocab_size = vocab_size
        self._timeout_s = timeout_s
        self._compiler: xgrammar.GrammarCompiler | None = None
        self._cache: OrderedDict[str, xgrammar.CompiledGrammar] = OrderedDict()  # oldest first
        self._num_cached_bytes = 0
        self._pending: dict[str, asyncio.Task[xgrammar.CompiledGrammar]] = {}
        self._turn = asyncio.Lock()
        self._overdue: list[threading.Thread] = []
        self.num_compiled = 0
        self.compile_s = 0.0  # of the clock, in all

    @property
    def num_pending(self) -> int:
        """Grammars being compiled or waiting for it."""
        return len(self._pending)

    async def guide(self, request: EngineRequest) -> Guide:
        """Compile the request's grammar, or find it; raises InvalidGrammar with the reason."""
        assert request.grammar is not None
        tag = structural_tag(request.grammar)
        self._check(tag, request)
        grammar = self._cache.get(tag)
        if grammar is None:
            grammar = await asyncio.shield(self._task(tag))
        else:
            self._cache.move_to_end(tag)
        # The first stop id is what a finished grammar ends with; others may stand in the tag.
        return Guide(grammar, request.stop_token_ids[0])

    def _check(self, tag: str, request: EngineRequest) -> None:
        num_bytes = len(tag.encode())
        if num_bytes > MAX_GRAMMAR_BYTES:
            raise InvalidGrammar(
                f"the grammar has {num_bytes} bytes; at most {MAX_GRAMMAR_BYTES} are compiled"
            )
        if not request.stop_token_ids:
            raise InvalidGrammar("grammar needs stop_token_ids: the first ends a finished grammar")
        if self._vocabulary_path is None:
            raise InvalidGrammar(
                "this engine was started without vocabulary_path and cannot follow a grammar"
            )

    def _task(self, tag: str) -> asyncio.Task[xgrammar.CompiledGrammar]:
        task = self._pending.get(tag)
        if task is None:
            if len(self._pending) >= MAX_PENDING:
                raise QueueFull(f"{MAX_PENDING} grammars wait to be compiled; try again later")
            task = asyncio.create_task(self._compile(tag), name="grammar")
            self._pending[tag] = task
            task.add_done_callback(lambda done: self._on_done(tag, done))
        return task

    def _on_done(self, tag: str, task: asyncio.Task[xgrammar.CompiledGrammar]) -> None:
        del self._pending[tag]
        if task.cancelled() or task.exception() is not None:
            return
        grammar = task.result()
        self._cache[tag] = grammar
        self._num_cached_bytes += grammar.memory_size_bytes
        while self._num_cached_bytes > MAX_CACHED_BYTES and len(self._cache) > 1:
            _, oldest = self._cache.popitem(last=False)
            self._num_cached_bytes -= oldest.memory_size_bytes

    async def _compile(self, tag: str) -> xgrammar.CompiledGrammar:
        async with self._turn:
            if self._compiler is None:
                self._compiler = await self._in_thread(self._load, None)
            compiler = self._compiler
            started_s = time.monotonic()
            try:
                return await self._in_thread(lambda: compile_tag(compiler, tag), self._timeout_s)
            except TimeoutError:
                raise InvalidGrammar(
                    f"compiling the grammar takes longer than {self._timeout_s:g} s; simplify it "
                    "(long maxLength or maxItems, and large enums, are costly)"
                ) from None
            except EngineError:
                raise
            except Exception as error:  # xgrammar raises RuntimeError for whatever it refuses
                raise InvalidGrammar(f"the grammar cannot be compiled: {_reason(error)}") from error
            finally:
                self.num_compiled += 1
                self.compile_s += time.monotonic() - started_s

    def _load(self) -> xgrammar.GrammarCompiler:
        assert self._vocabulary_path is not None
        try:
            import xgrammar
        except ImportError as error:
            raise RequestFailed(f"xgrammar cannot be imported: {error}") from error
        # Control tokens get bytes that no text has, so that only a tag's own tokens name them.
        vocabulary = read_vocabulary(self._vocabulary_path, self._vocab_size)
        info = xgrammar.TokenizerInfo(
            [spelt if spelt else b"\xff%d" % id for id, spelt in enumerate(vocabulary)],
            xgrammar.VocabType.RAW,
            vocab_size=self._vocab_size,
            stop_token_ids=[self._vocab_size - 1],  # each guide has its own instead
        )
        return xgrammar.GrammarCompiler(info, max_threads=_NUM_THREADS, cache_enabled=False)

    async def _in_thread(self, work: Callable[[], _Result], timeout_s: float | None) -> _Result:
        """Run in a daemon thread, which is left to itself when it takes too long."""
        self._overdue = [thread for thread in self._overdue if thread.is_alive()]
        if len(self._overdue) >= MAX_OVERDUE:
            raise QueueFull("earlier grammars are still being compiled; try again later")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[_Result] = loop.create_future()

        def settle(result: _Result | None, error: Exception | None) -> None:
            if outcome.done():
                return
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)  # type: ignore[arg-type]

        def run() -> None:
            result, failure = None, None
            try:
                result = work()
            except Exception as error:
                failure = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, failure)

        thread = threading.Thread(target=run, name="grammar", daemon=True)
        thread.start()
        try:
            return await asyncio.wait_for(outcome, timeout_s)
        except TimeoutError:
            self._overdue.append(thread)
            raise


_LOOSE_CHARACTERS = re.compile(r'(_characters(?:_\d+)? ::= \(\(\[\^\\"\\\\)\\r\\n(\]\)\))')

_BYTE_ESCAPE = re.compile(r"\\\\|\\x([0-9a-f]{2})")  # a backslash pair is passed over


def compile_tag(compiler: xgrammar.GrammarCompiler, tag: str) -> xgrammar.CompiledGrammar:
    """Compile; raises RuntimeError for whatever xgrammar refuses."""
    import xgrammar

    # xgrammar 0.2.8 lets control characters, tabs above all, into strings with minLength or
    # maxLength, where JSON has none.
    grammar = str(xgrammar.Grammar.from_structural_tag(tag))
    tight = _LOOSE_CHARACTERS.sub(r"\1\\0-\\x1f\2", grammar)
    if tight == grammar:
        return compiler.compile_structural_tag(tag)
    # Its printer writes "ße" as "\\xdfe", which its parser reads as one character.
    exact = _BYTE_ESCAPE.sub(lambda m: rf"\u00{m[1]}" if m[1] else m[0], tight)
    return compiler.compile_grammar(exact)


_PREFIX = re.compile(r"^\[[\d:]+\] \S+\.cc:\d+: (?:Check failed: .*? is false: )?", re.DOTALL)


def _reason(error: Exception) -> str:
    """xgrammar's words without the place in its source."""
    return _PREFIX.sub("", str(error)).strip() or type(error).__name__
