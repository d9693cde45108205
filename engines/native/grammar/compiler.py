"""Grammars: compiled beside the step loop, followed token by token inside it."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from engines.base import EngineRequest
from engines.errors import EngineStartError, InvalidGrammar, QueueFull, RequestFailed
from engines.grammar.llguidance import llguidance_grammar
from engines.grammar.tree import Grammar, written_parts
from engines.native.backends.base import TokenMask, TokenMasks
from engines.native.grammar import vocabulary
from engines.native.grammar.harmless import is_harmless
from engines.native.grammar.library import STACK, compiled, readable
from engines.native.grammar.trial import Trials, named

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_GRAMMAR_CHARS: Final = 1_000_000  # as it is compiled
MAX_GBNF_CHARS: Final = 20_000  # its translation takes quadratic time
MAX_CACHED: Final = 64  # compiled grammars
MAX_BYTES: Final = 1024**3  # of all compiled grammars, those in use included
MAX_PENDING: Final = 2048  # grammars waiting to be compiled
MAX_PENDING_OF_TENANT: Final = 1024
_GRACE_S: Final = 1.0  # after the start, in which those that have waited for it are resumed
_AT_ONCE: Final = 3  # compilations; of one tenant one
_LEAST_BYTES: Final = 1024**2  # that a compiled grammar counts as, and for each character of it:
_BYTES_OF_CHAR: Final = 200

# A mask takes 0.05 ms as a rule, and all streams wait for it. A grammar may take longer now and
# then, not at every token; cheap tokens earn no more than it had at the start.
_FREE_S: Final = 0.5
_TOKEN_S: Final = 0.01

_Result = TypeVar("_Result")


@dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled grammar of the library; each request that follows it holds a reference."""

    matcher: LLMatcher
    num_bytes: int


class Guide:
    """The state of one sequence in its grammar; belongs to the worker's thread."""

    __slots__ = ("_budget_s", "_compiled", "_end", "_matcher", "_stop")

    def __init__(self, compiled: Compiled, end_token_id: int, stop_token_id: int) -> None:
        self._compiled = compiled
        self._matcher = compiled.matcher.deep_copy()
        self._end = end_token_id  # what the library has for the end of the answer
        self._stop = stop_token_id  # and what the request has
        self._budget_s = _FREE_S

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write the mask of tokens that may follow: (ceil(vocab_size / 32)), all zero at a dead
        end.

        Raises InvalidGrammar for a grammar whose masks take too long.
        """
        self._fill(mask, self._matcher)

    def fill_along(self, masks: TokenMasks, drafts: tuple[int, ...]) -> int:
        """Write the masks before, between and after as many of the drafts as may follow and leave
        a way on; their number. The guide stays where it is."""
        matcher = self._matcher.deep_copy()
        for i, draft in enumerate(drafts):
            if not self._leaves_a_way(masks[i], matcher):
                return max(i - 1, 0)
            if draft == self._stop or not _is_set(masks[i], draft):
                return i
            matcher.consume_token(draft)
        num = len(drafts)
        return num if self._leaves_a_way(masks[num], matcher) else num - 1

    def _leaves_a_way(self, mask: TokenMask, matcher: LLMatcher) -> bool:
        try:
            self._fill(mask, matcher)
        except InvalidGrammar:
            return False  # fill() will say so if the answer comes to this place
        return bool(mask.any())

    def _fill(self, mask: NDArray[np.int32], matcher: LLMatcher) -> None:
        started_s = time.thread_time()
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        spent_s = time.thread_time() - started_s
        self._budget_s = min(_FREE_S, self._budget_s + _TOKEN_S) - spent_s
        if matcher.is_error():
            error = matcher.get_error()
            if "NoExtensionBias" not in error:
                raise InvalidGrammar(_unfollowed(readable(error)))
            mask.fill(0)
        if self._budget_s < 0:
            raise InvalidGrammar(_unfollowed("finding its next token takes too long"))
        words = mask.view(np.uint32)
        if _take(words, self._end):
            words[self._stop // 32] |= np.uint32(1 << self._stop % 32)

    def accept(self, token_id: int) -> None:
        """Advance by a generated token; raises RuntimeError for one that the mask excluded."""
        if token_id == self._stop and self._matcher.is_accepting():
            return
        if not self._matcher.consume_token(token_id):
            raise RuntimeError(f"the grammar does not allow the token {token_id}")

    def follow(self, token_ids: Iterable[int]) -> None:
        """Advance by the tokens of an earlier run; raises RequestFailed if the grammar excludes
        them."""
        try:
            for token_id in token_ids:
                self.accept(token_id)
        except RuntimeError as error:
            raise RequestFailed(f"the answer cannot be continued: {error}") from error


def _is_set(mask: TokenMask, token_id: int) -> bool:
    return bool(mask.view(np.uint32)[token_id // 32] >> np.uint32(token_id % 32) & np.uint32(1))


def _take(words: NDArray[np.uint32], token_id: int) -> bool:
    """Clear a token's bit; return whether it was set."""
    bit = np.uint32(1 << token_id % 32)
    was_set = bool(words[token_id // 32] & bit)
    words[token_id // 32] &= ~bit
    return was_set


def _unfollowed(reason: str) -> str:
    return f"the grammar is too expensive to enforce: {reason}"


class GrammarCompiler:
    """Compiles grammars, first in a process of their own; keeps those last used.

    A tenant's are compiled one at a time, and those of a few tenants at once: a tenant's slow
    grammars only delay its own. All methods belong to one event loop.
    """

    def __init__(
        self, vocabulary_path: Path | None, vocab_size: int, timeout_s: float, idle: asyncio.Event
    ) -> None:
        self._vocab_size = vocab_size
        self._timeout_s = timeout_s
        self._trials = Trials(vocab_size, timeout_s)
        self._vocabulary_path = vocabulary_path
        self._idle = idle
        self._tokenizer: LLTokenizer | None = None
        self._starting: asyncio.Task[None] | None = None  # the first trial's process
        self._cache: OrderedDict[Grammar, Compiled] = OrderedDict()  # oldest first
        self._alive: WeakSet[Compiled] = WeakSet()  # those, and what is followed
        self._pending: dict[tuple[str, Grammar], asyncio.Task[Compiled]] = {}  # by tenant too
        self._num_pending_of: Counter[str] = Counter()  # by tenant
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by tenant
        self._places = asyncio.Semaphore(_AT_ONCE)  # the next is the longest waiting
        self.num_compiled = 0
        self.compile_s = 0.0  # of the clock, in all

    async def start(self) -> None:
        """Make what grammars need, unless it was made beside the load; raises EngineStartError
        naming what is missing."""
        path = self._vocabulary_path
        if path is not None:
            if importlib.util.find_spec("llguidance") is None:
                raise EngineStartError("llguidance is not installed; structured outputs need it")
            load = vocabulary.load_tokenizer
            self._tokenizer = await asyncio.to_thread(load, path, self._vocab_size)
            self._starting = asyncio.create_task(self._start_trial(), name="grammar trial")

    async def stop(self) -> None:
        pending = list(self._pending.values())
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await self._trials.stop()

    async def _start_trial(self) -> None:
        """Start the first trial's process in an idle moment: its own start takes a second of a
        core. A grammar that comes before starts it by itself."""
        await asyncio.sleep(_GRACE_S)
        await self._idle.wait()
        await self._trials.start()

    async def guide(self, request: EngineRequest) -> Guide:
        """The state of a request at the start of its grammar, which is compiled unless it is
        cached.

        Raises InvalidGrammar with the reason, and QueueFull where too many wait or too much is
        held.
        """
        grammar = request.grammar
        assert grammar is not None
        if not request.stop_token_ids:
            raise InvalidGrammar("grammar needs stop_token_ids: the first ends a finished grammar")
        if self._tokenizer is None:
            raise InvalidGrammar(
                "this engine was started without vocabulary_path and cannot enforce a grammar"
            )
        found = self._cache.get(grammar)
        if found is None:
            found = await asyncio.shield(self._task(grammar, request.tenant))
        else:
            self._cache.move_to_end(grammar)
        return Guide(found, self._vocab_size - 1, request.stop_token_ids[0])

    def _task(self, grammar: Grammar, tenant: str) -> asyncio.Task[Compiled]:
        task = self._pending.get((tenant, grammar))
        if task is None:
            if (
                len(self._pending) >= MAX_PENDING
                or self._num_pending_of[tenant] >= MAX_PENDING_OF_TENANT
            ):
                raise QueueFull("too many grammars are waiting for compilation; try again later")
            task = asyncio.create_task(self._compile(grammar, tenant), name="grammar")
            self._pending[tenant, grammar] = task
            self._num_pending_of[tenant] += 1
            task.add_done_callback(lambda done: self._on_done(grammar, tenant, done))
        return task

    def _on_done(self, grammar: Grammar, tenant: str, task: asyncio.Task[Compiled]) -> None:
        del self._pending[tenant, grammar]
        self._num_pending_of -= Counter((tenant,))
        if tenant not in self._num_pending_of:
            self._turns.pop(tenant, None)
        if task.cancelled() or task.exception() is not None:
            return
        self._cache[grammar] = task.result()
        if len(self._cache) > MAX_CACHED:
            self._cache.popitem(last=False)

    async def _compile(self, grammar: Grammar, tenant: str) -> Compiled:
        async with self._turns[tenant], self._places:
            if grammar in self._cache:  # another tenant had it compiled meanwhile
                return self._cache[grammar]
            started_s = time.monotonic()
            try:
                return await self._in_two_steps(grammar)
            except InvalidGrammar as error:
                parts = written_parts(grammar)
                raise await named(error, parts, self._try, self._timeout_s) from None
            finally:
                self.num_compiled += 1
                self.compile_s += time.monotonic() - started_s

    async def _in_two_steps(self, grammar: Grammar) -> Compiled:
        text = await asyncio.to_thread(written, grammar)
        assert self._tokenizer is not None
        tokenizer = self._tokenizer
        num_bytes = _LEAST_BYTES + _BYTES_OF_CHAR * len(text)
        if not await asyncio.to_thread(is_harmless, written_parts(grammar)):
            num_bytes = max(num_bytes, await self._trials.run(text))
        self._make_room(num_bytes)
        matcher = await _in_thread(lambda: compiled(tokenizer, text))
        result = Compiled(matcher, num_bytes)
        self._alive.add(result)
        return result

    def _make_room(self, num_bytes: int) -> None:
        """Drop the least recently used grammars; raises QueueFull if that is not enough."""
        while sum(one.num_bytes for one in self._alive) + num_bytes > MAX_BYTES:
            if not self._cache:
                raise QueueFull("the grammars in use take too much memory; try again later")
            self._cache.popitem(last=False)

    async def _try(self, grammar: Grammar) -> None:
        await self._trials.run(await asyncio.to_thread(written, grammar))


def written(grammar: Grammar) -> str:
    """Write the grammar in the library's form; raises InvalidGrammar."""
    return within_limit(llguidance_grammar(grammar, lark_of_gbnf))


def within_limit(text: str) -> str:
    """Return a written grammar; raises InvalidGrammar for one too long to be compiled."""
    if len(text) > MAX_GRAMMAR_CHARS:
        raise InvalidGrammar(
            f"the grammar has {len(text)} characters; at most {MAX_GRAMMAR_CHARS} are compiled"
        )
    return text


def lark_of_gbnf(grammar: str) -> str:
    """Translate llama.cpp's EBNF to Lark's with the library; raises InvalidGrammar."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if len(grammar) > MAX_GBNF_CHARS:
        raise InvalidGrammar(f"the grammar is longer than {MAX_GBNF_CHARS} characters")
    try:
        return gbnf_to_lark(grammar)
    except Exception as error:  # what it refuses, and what it stumbles over
        raise InvalidGrammar(f"the grammar cannot be read: {error}") from error


async def _in_thread(work: Callable[[], _Result]) -> _Result:
    """Run in a thread whose stack is deeper than that of the process that has tried it."""
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

    before = threading.stack_size(2 * STACK)
    try:
        threading.Thread(target=run, name="grammar", daemon=True).start()
    finally:
        threading.stack_size(before)
    return await outcome
