"""The engine contract: token ids in, token ids out.

An engine knows nothing of text, channels, HTTP or users. Everything above this
line renders prompts to ids and parses ids to answers; everything below turns ids
into more ids. The standard library, the errors of engines, the sampling fields and the tree of a
grammar are all this module may import, so that every engine process can load it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import zip_longest
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from engines.errors import EngineError
from engines.fields import FIELDS
from engines.fields import SamplingParams as SamplingParams
from engines.grammar.tree import Grammar


@dataclass(frozen=True, slots=True)
class Adapter:
    """Low-rank changes of the model's weights (LoRA), with which a request is computed."""

    name: str  # by which clients ask for it
    path: str  # its folder, in PEFT's format
    key: str  # of its content: nothing cached under another key belongs to it


NOBODY: Final = "\0"  # a tenant that no request has
LOWEST_PRIORITY: Final = (1 << 31) - 1  # of jobs: no client waits for them
PROBE_ID: Final = "probe"  # the id of requests that only ask whether the engine generates
# The sizes of steps that are told apart; vLLM has the same.
STEP_TOKENS: Final = (1, *(8 << power for power in range(12)))


class FinishReason(StrEnum):
    """Why a generation ended; exactly one event of each request carries one."""

    STOP = "stop"  # a stop token id was generated; it is the last id of the event
    LENGTH = "length"  # max_tokens or the context length was reached


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generation that an engine is asked for: prompt, sampling, grammar, and whose it is."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stop_token_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None  # what the answer may be
    priority: int = 0  # lower runs first
    cache_salt: str | None = None  # prompts share cached prefixes only under the same salt
    tenant: str = ""  # tenants of one priority share the engine evenly
    # Seconds that it may wait for its first token behind others: what would come later is refused
    # (Overloaded), as a rule before anything of it is computed. An answer that has begun is never
    # ended for this, nor a request that found the queue empty.
    max_wait_s: float | None = None
    # Of a run that was cut off: this one gives what would have come after them, as if nothing had
    # happened. They count as generated in every respect, and none of them ends the answer.
    generated_token_ids: tuple[int, ...] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)  # what parts of the engine get, plain
    adapter: Adapter | None = None  # None: the model as it is; prefixes are apart by cache_salt


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of one generated token, with its likeliest rivals."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first


@dataclass(slots=True)  # not frozen: made for every token, which then takes a third of the time
class TokenEvent:
    """What one or more engine steps added to one request; never changed once made."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None  # one per token id when asked for
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0  # prompt tokens taken from the prefix cache; the same on every event
    # How long the request waited before its first step; the same on every event.
    queued_s: float = field(default=0.0, compare=False)
    # Further results, plain, by the name of the field that asked; on the first event only.
    extras: Mapping[str, Any] | None = None
    # How often the request was continued after its engine had died; the same on every later event.
    num_restarts: int = field(default=0, compare=False)


def tokens_alone(token_ids: tuple[int, ...], last: TokenEvent) -> TokenEvent:
    """The event of tokens that came without the rest, which is as in the last whole event."""
    return TokenEvent(
        token_ids,
        num_cached_tokens=last.num_cached_tokens,
        queued_s=last.queued_s,
        num_restarts=last.num_restarts,
    )


# What an engine may lack; the last two are of answers that another run has begun, the last where
# a seed, penalties or a grammar remember what was generated.
MAY_LACK: Final = frozenset(row.name for row in FIELDS if row.may_lack) | {
    "grammar",
    "continuation",
    "exact_continuation",
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What engines may lack; by default an engine can do all that a request may ask for."""

    lacks: frozenset[str] = frozenset()  # of MAY_LACK
    dialects: tuple[str, ...] = ("json_schema", "regex", "lark", "gbnf")  # parts of a grammar
    max_drafts: int = 0  # drafts of a sequence that one step verifies
    max_logprobs: int | None = None  # likeliest rivals of a token; None: the whole vocabulary


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine serves; known once it has started."""

    engine: str
    version: str
    max_model_len: int  # prompt and generated tokens together
    vocab_size: int
    max_num_seqs: int
    max_num_batched_tokens: int = 8192  # tokens of prompts that one step computes at most
    capabilities: Capabilities = field(default_factory=Capabilities)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of an engine; counters only grow while the engine process lives."""

    num_running: int = 0
    num_waiting: int = 0
    num_kv_blocks: int = 0
    num_free_kv_blocks: int = 0  # cached but unreferenced blocks count as free
    num_preemptions: int = 0
    num_steps: int = 0  # ended; 0 from engines that do not count them
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_cache_queries: int = 0  # prompt tokens looked up
    prefix_cache_hits: int = 0  # prompt tokens found
    draft_tokens: int = 0  # guessed and verified
    accepted_draft_tokens: int = 0  # of these, those that were right
    num_drafts: int = 0  # each of one sequence in one step
    accepted_by_position: tuple[int, ...] = ()  # drafts whose first, second, ... token was right
    step_tokens: int = 0  # computed by the steps; of engines that tell it, as the next
    steps_by_tokens: tuple[int, ...] = ()  # steps up to each of STEP_TOKENS, and above
    kv_block_size: int = 0  # tokens in a KV block
    num_grammars_compiled: int = 0  # those refused too; those found compiled not
    grammar_compile_s: float = 0.0  # spent on them in all
    extras: Mapping[str, float] = field(default_factory=dict)  # counted by parts
    levels: Mapping[str, float] = field(default_factory=dict)  # what parts hold now

    @property
    def work_done(self) -> int:
        """A number that grows whenever something was computed, and does not change in a hang.

        Prompt tokens do not count: they are counted when a request is admitted, computed or not.
        """
        return self.num_steps + self.generated_tokens

    @property
    def kv_usage(self) -> float:
        if self.num_kv_blocks == 0:
            return 0.0
        return 1.0 - self.num_free_kv_blocks / self.num_kv_blocks


@dataclass(slots=True)
class StepCounts:
    """The fields of EngineStats that grow with each step; what an engine does not tell stays
    empty."""

    step_tokens: int = 0
    steps_by_tokens: list[int] = field(default_factory=list)
    num_drafts: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    accepted_by_position: list[int] = field(default_factory=list)

    def count_step(self, num_tokens: int) -> None:
        self.step_tokens += num_tokens
        self.steps_by_tokens = self.steps_by_tokens or [0] * (len(STEP_TOKENS) + 1)
        self.steps_by_tokens[bisect_left(STEP_TOKENS, num_tokens)] += 1

    def count_drafts(self, num_drafts: int, num_tokens: int, right: Sequence[int]) -> None:
        """Count verified drafts; `right`: those whose first token, second, ... was right."""
        self.num_drafts += num_drafts
        self.draft_tokens += num_tokens
        self.accepted_draft_tokens += sum(right)
        both = zip_longest(self.accepted_by_position, right, fillvalue=0)
        self.accepted_by_position = [before + now for before, now in both]

    def of_steps(self) -> dict[str, Any]:
        """The fields of EngineStats that are counted here, those of a subclass too."""
        counted = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {key: tuple(num) if isinstance(num, list) else num for key, num in counted}


class ExpectedWait(NamedTuple):
    """How long a short request would wait in an engine's queue if it came now, in seconds."""

    likely_s: float = 0.0  # by the pace of the queue: for Retry-After
    sure_s: float = 0.0  # not more than that: a request may be refused for it


NO_WAIT: Final = ExpectedWait()


@dataclass(frozen=True, slots=True)
class ExpectedWaits:
    """The expected waits of the tenants of one engine."""

    others: ExpectedWait = NO_WAIT  # of tenants that are not named
    tenants: Mapping[str, ExpectedWait] = field(default_factory=dict)

    def of(self, tenant: str) -> ExpectedWait:
        return self.tenants.get(tenant, self.others)


OnEntered = Callable[[], None]


def ignore() -> None:
    """Do nothing: no caller wants to know."""


class Engine(Protocol):
    """Anything that generates tokens.

    A request is answered (events, the last with a finish_reason) or raises an
    EngineError (engines/errors.py); it is never dropped. Closing the iterator that
    generate() returned aborts the request: the one way to cancel.
    """

    @property
    def info(self) -> EngineInfo:
        """What the engine serves; raises EngineDead before start()."""

    async def start(self) -> None:
        """Start the engine; raises EngineStartError when it cannot serve."""

    def generate(
        self, request: EngineRequest, on_entered: OnEntered = ignore
    ) -> AsyncGenerator[TokenEvent, None]:
        """Yield the events of a request; raises an EngineError; closing the iterator aborts it.

        `on_entered`: called once or more when the request can no longer be refused for its wait,
        within a second, unless its first token is there before.
        """

    async def stats(self) -> EngineStats:
        """Count what the engine runs and has run; raises EngineDead."""

    async def check_health(self) -> None:
        """Return if the engine can serve now, else raise EngineDead with the reason."""

    def expected_wait(self, tenant: str) -> ExpectedWait:
        """How long a short request of the tenant would wait in the queue."""

    async def drain(self) -> None:
        """Refuse new requests and return when the running ones have ended."""

    async def stop(self) -> None:
        """Abort what still runs and release everything; may be called twice."""


T = TypeVar("T")
# Of a step, for one request; a number is a token with nothing else to tell, behind a whole event.
Outcome = TokenEvent | int | EngineError
Receive = Callable[[Outcome], None]


class Runner(Protocol[T]):
    """What an engine has to do: run requests. `T` is a request in the engine's own form.

    All methods belong to one event loop, and `receive` is called on it: with each event up to
    the one with a finish_reason, or with one error, and never after abort().
    """

    @property
    def info(self) -> EngineInfo:
        """What the engine serves; raises EngineDead before start()."""

    async def start(self) -> None:
        """Load the model; raises EngineStartError when the engine cannot start."""

    async def prepare(self, request: EngineRequest) -> T:
        """Check the request and compile its grammar; raises InvalidRequest, EngineDead."""

    def num_cached_tokens(self, run: T) -> int | None:
        """The first tokens of a prepared request that were cached; None where that is not known."""

    def begin(self, run: T, receive: Receive, arrived_s: float) -> None:
        """Run a prepared request; raises EngineDead.

        `arrived_s` (time.monotonic()) is when the request arrived, for the `queued_s` of its
        events.
        """

    def abort(self, run: T) -> None:
        """End a run without an event or an error; frees what it holds."""

    async def stats(self) -> EngineStats:
        """Count what the engine runs and has run."""

    async def check_health(self) -> None:
        """Raise EngineDead with the reason unless the engine can serve now."""

    async def stop(self) -> None:
        """End what runs with EngineDead and release everything; may be called twice."""
