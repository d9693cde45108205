"""Grammars for a guest's llguidance, each tried in a process of its own first.

Guests compile them in the process that runs all requests, without a limit of time or memory.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Final

from engines.base import EngineRequest
from engines.errors import InvalidGrammar, QueueFull
from engines.grammar.llguidance import llguidance_lark
from engines.grammar.tree import Concatenation, Grammar, Token, written_parts
from engines.native.grammar.compiler import lark_of_gbnf, within_limit
from engines.native.grammar.harmless import is_harmless
from engines.native.grammar.library import readable
from engines.native.grammar.trial import Trials, named

MAX_KNOWN: Final = 256  # that have passed and need no second trial
MAX_PENDING: Final = 2048
MAX_PENDING_OF_TENANT: Final = 1024
TIMEOUT_S: Final = 10.0


class Grammars:
    """Writes grammars and tries those of clients; all methods belong to one event loop."""

    def __init__(self, vocab_size: int, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._trials = Trials(vocab_size, timeout_s)
        self._passed: OrderedDict[str, None] = OrderedDict()  # texts, oldest first
        self._pending: list[str] = []  # tenants
        self.num_compiled = 0
        self.compile_s = 0.0  # of the clock, in all

    async def start(self) -> None:
        await self._trials.start()

    async def stop(self) -> None:
        await self._trials.stop()

    async def written(self, request: EngineRequest) -> str:
        """Write the request's grammar in llguidance's Lark; raises InvalidGrammar with the reason.

        The text ends with the first of the stop ids, which the guest would not ask for. Raises
        QueueFull where too many wait.
        """
        grammar = request.grammar
        assert grammar is not None
        if not request.stop_token_ids:
            raise InvalidGrammar("grammar needs stop_token_ids: the first ends a finished grammar")
        end = Token(request.stop_token_ids[0])
        text = await asyncio.to_thread(_written, Concatenation((grammar, end)))
        if text not in self._passed:
            self.num_compiled += 1
            if not await asyncio.to_thread(is_harmless, written_parts(grammar)):
                await self._try(text, grammar, request.tenant)
        self._passed[text] = None
        self._passed.move_to_end(text)
        if len(self._passed) > MAX_KNOWN:
            self._passed.popitem(last=False)
        return text

    async def refusal(self, grammar: Grammar, words: str) -> InvalidGrammar:
        """Find the part that the guest refuses of a grammar thought too harmless for a trial.

        `words`: what the guest says of it.
        """
        error = InvalidGrammar(readable(words))
        return await named(error, written_parts(grammar), self._run, self._timeout_s)

    async def _try(self, text: str, grammar: Grammar, tenant: str) -> None:
        num_of_tenant = self._pending.count(tenant)
        if len(self._pending) >= MAX_PENDING or num_of_tenant >= MAX_PENDING_OF_TENANT:
            raise QueueFull("too many grammars are waiting for compilation; try again later")
        self._pending.append(tenant)
        started_s = time.monotonic()
        try:
            await self._trials.run(text)
        except InvalidGrammar as error:
            raise await named(error, written_parts(grammar), self._run, self._timeout_s) from None
        finally:
            self._pending.remove(tenant)
            self.compile_s += time.monotonic() - started_s

    async def _run(self, grammar: Grammar) -> None:
        await self._trials.run(await asyncio.to_thread(_written, grammar))


def _written(grammar: Grammar) -> str:
    return within_limit(llguidance_lark(grammar, lark_of_gbnf))
