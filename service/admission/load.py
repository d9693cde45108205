"""How long a new request would wait, judged by how long the last ones did.

Work is counted in tokens as the engine's queue counts them. Each first token tells how long work
ahead takes now, whatever makes it slow: prefill, decoding, the number of sequences, other workers
of the same engine. The prediction is what nearly all had to wait behind as much work, which in a
fair queue is not all that waits; or longer, if whoever waits now does. Before the first few tokens
have come nothing is known, and a burst would be let in whole: so only a few requests wait in the
engine then, and the others for what those tell.

A grammar that the engine has not been seen to follow may first have to be compiled, for
milliseconds or most of a minute. Who waits for that is no part of the queue for the engine's
steps: it is neither priced nor ahead of anybody. Once a first token has come with the grammar,
requests with it are like any other.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from engines.pace import MIN_SAMPLES, Pace
from engines.queue import GENERATED_COST
from service.answer.plan import Plan

_MEMORY: Final = 0.9  # what the past still counts at the next answer's end
_MOST_KNOWN: Final = 4096  # grammars
_LONG_AGO: Final = 256.0  # tokens an answer is taken to have before one has ended


@dataclass(slots=True, eq=False)
class Ticket:
    """One request from its arrival at the gate to its first token."""

    tenant: str
    priority: int
    work: float  # its own
    ahead: float  # before it, when it came
    entered_at: float
    new_grammar: int | None = None  # the hash of one that may have to be compiled


class Load:
    """The requests of this process that wait for a first token, and what waiting costs."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._pending: dict[Ticket, None] = {}  # in order of arrival
        self._compiling: dict[Ticket, None] = {}
        self._known: OrderedDict[int, None] = OrderedDict()  # grammars, the last used at the end
        self._work: dict[int, dict[str, float]] = {}  # pending, by priority and tenant
        self._pace = Pace()
        self._mean_output = _LONG_AGO
        self._news = asyncio.Event()

    @property
    def is_blind(self) -> bool:
        """Whether nothing is known yet, and enough wait for their first tokens to change that."""
        return not self._pace.is_known and len(self._pending) >= MIN_SAMPLES

    async def news(self, timeout_s: float) -> None:
        """Wait until one of the waiting requests has its first token, or leaves."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()

    def ticket(self, plan: Plan, tenant: str) -> Ticket:
        """The ticket of a request that wants to enter now."""
        num_prompt = sum(len(prompt) for prompt in plan.prompts)
        num_generated = min(plan.sampling.max_tokens, self._mean_output)
        num_answers = plan.num_choices * len(plan.prompts)
        work = num_prompt + GENERATED_COST * num_generated * num_answers
        ticket = self.ticket_for(work, plan.priority, tenant)
        if plan.grammar is not None and hash(plan.grammar) not in self._known:
            ticket.new_grammar = hash(plan.grammar)
        return ticket

    def ticket_for(self, work: float, priority: int, tenant: str) -> Ticket:
        """The ticket of a request of so much work that wants to enter now."""
        ahead = self._ahead(priority, tenant, work)
        return Ticket(tenant, priority, work, ahead, self._clock())

    def predicted_wait_s(self, ticket: Ticket) -> float:
        """Seconds to the request's first token; 0 when nothing is before it: so there is news."""
        if not ticket.ahead or not self._pace.is_known:
            return 0.0
        work = ticket.ahead + ticket.work
        return max(self._pace.expected_s(work), self._price_s(ticket.priority) * work)

    def num_new_grammars(self, tenant: str) -> int:
        """How many of the tenant's grammars may be waiting to be compiled."""
        return len({t.new_grammar for t in self._compiling if t.tenant == tenant})

    def enter(self, ticket: Ticket) -> None:
        """Note that the request waits from now on."""
        if ticket.new_grammar is not None:
            self._compiling[ticket] = None
            return
        self._pending[ticket] = None
        tenants = self._work.setdefault(ticket.priority, {})
        tenants[ticket.tenant] = tenants.get(ticket.tenant, 0.0) + ticket.work

    def begin(self, ticket: Ticket) -> None:
        """Note the request's first token; every other call for the ticket has no effect."""
        if ticket in self._compiling:
            self._know(ticket)
        else:
            self._learn(ticket, self._clock() - ticket.entered_at)
        self.leave(ticket)

    def give_up(self, ticket: Ticket, limit_s: float) -> None:
        """Note that the first token would have come later than after so many seconds."""
        self._learn(ticket, limit_s)
        self.leave(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Note that the request waits no longer, for whatever reason; may be called again."""
        self._compiling.pop(ticket, None)
        if ticket not in self._pending:
            return
        del self._pending[ticket]
        self._news.set()
        self._news = asyncio.Event()
        tenants = self._work[ticket.priority]
        tenants[ticket.tenant] -= ticket.work
        if tenants[ticket.tenant] < 0.5:  # nothing but rounding: every work is 1 or more
            del tenants[ticket.tenant]
        if not tenants:
            del self._work[ticket.priority]

    def end(self, num_generated: int) -> None:
        """Note how many tokens an answer had."""
        self._mean_output += (num_generated - self._mean_output) * (1 - _MEMORY)

    def _know(self, ticket: Ticket) -> None:
        """Its grammar is compiled: whoever waits with the same waits for steps from now on."""
        assert ticket.new_grammar is not None
        self._known[ticket.new_grammar] = None
        del self._compiling[ticket]
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        same = [t for t in self._compiling if t.new_grammar == ticket.new_grammar]
        for other in same:
            del self._compiling[other]
            other.new_grammar, other.entered_at = None, self._clock()
            other.ahead = self._ahead(other.priority, other.tenant, other.work)
            self.enter(other)

    def _ahead(self, priority: int, tenant: str, work: float) -> float:
        """All of better priorities; of the same, each other tenant's no more than its own."""
        better = sum(sum(lane.values()) for other, lane in self._work.items() if other < priority)
        lane = self._work.get(priority, {})
        own = lane.get(tenant, 0.0)
        others = sum(min(of, own + work) for name, of in lane.items() if name != tenant)
        return better + own + others

    def _learn(self, ticket: Ticket, seconds: float) -> None:
        """The less urgent wait for others than those that are counted ahead of them."""
        if ticket in self._pending and ticket.priority == min(self._work):
            self._pace.note(seconds, ticket.ahead + ticket.work)

    def _price_s(self, priority: int) -> float:
        """Seconds that a token of work ahead has cost whoever waits longest, by now."""
        first = next((t for t in self._pending if t.priority <= priority), None)
        if first is None:
            return 0.0
        return (self._clock() - first.entered_at) / (first.ahead + first.work)
