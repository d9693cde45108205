"""One request end to end: engine events in, parsed pieces of each choice out. No HTTP.

Streamed and whole answers are both made of the same Steps, so they cannot differ.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, Literal

from engines.base import Engine, EngineRequest
from engines.errors import InvalidGrammar, Overloaded, RequestFailed
from engines.grammar.tree import written_parts
from service.answer.choice import Choice, ChoiceStep
from service.answer.plan import Plan
from service.answer.reasoning_end import end_reasoning
from service.answer.tiers import Tier, flex_unavailable
from service.errors import RequestError
from service.request import in_time, until
from service.tools import ToolSession
from service.work import in_thread

_RUNS_PER_TURN: Final = 8  # runs that begin or end in one turn of the loop
_SPARE_SHARE: Final = 2  # half as many as the engine has places for
_REFUSAL_S: Final = 5.0  # after its time in the queue, in which a refusal comes from a busy engine
_Begin = Callable[[], AsyncGenerator[ChoiceStep, None]]

GenerationOutcome = Literal["success", "failure", "abort"]

_ANSWER_SHARE = 8  # results leave an eighth of the context for what follows them
_MIN_RESULT_TOKENS = 32


class Generation:
    """One run of a plan on the engine; counted and timed for usage, metrics and the log."""

    def __init__(self, engine: Engine, plan: Plan, *, may_be_told: bool = False) -> None:
        """`may_be_told`: end_reasoning() may be called."""
        self.plan = plan
        self._may_be_told = may_be_told
        self._is_told = False  # to reason no more
        self.choices = self._new_choices()
        self.started_at = time.perf_counter()
        self.first_token_at: float | None = None
        self.ended_at: float | None = None
        self.outcome: GenerationOutcome = "abort"
        self.error_type: str | None = None  # the class of what ended it
        self.max_wait_s: float | None = None  # in the engine's queue; set at admission
        self.num_restarts = 0  # of engines that died under it
        self._has_entered = False  # the engine, which has taken it from its queue
        self._engine = engine

    async def steps(self) -> AsyncGenerator[ChoiceStep, None]:
        """Yield the steps of all choices as they come; closing the iterator aborts the choices."""
        if len(self.choices) == 1:
            running = self._run(self.choices[0])
        else:
            runs = [functools.partial(self._run, choice) for choice in self.choices]
            running = _merged(runs, _max_at_once(self._engine))
        try:
            async with aclosing(running) as steps:
                async for step in steps:
                    if self.first_token_at is None:
                        self.first_token_at = time.perf_counter()
                    yield step
            self.outcome = "success"
        except Exception as error:
            self.outcome, self.error_type = "failure", type(error).__name__
            if isinstance(error, InvalidGrammar):
                raise self._refusal(error) from error
            if isinstance(error, Overloaded) and self.plan.tier is Tier.FLEX:
                raise flex_unavailable(str(error), error.retry_s) from error
            raise
        finally:
            self.ended_at = time.perf_counter()

    def _new_choices(self) -> list[Choice]:
        num_choices = self.plan.num_choices * len(self.plan.prompts)
        choices = [Choice(self.plan, index) for index in range(num_choices)]
        trace = self.plan.context.trace
        for choice in choices:
            choice.is_timed = trace.span is not None
            choice.has_rounds = choice.has_rounds or self._may_be_told
            choice.transcript = [] if trace.has_content or self.plan.keeps_ids else None
        return choices

    def _run(self, choice: Choice) -> AsyncGenerator[ChoiceStep, None]:
        request = replace(self.plan.engine_request(choice.index), max_wait_s=self.max_wait_s)
        if self.plan.begun_ids:
            return self._continued(choice, request)
        return self._first_round(choice, request)

    def may_be_refused(self) -> bool:
        """Whether the engine may still refuse it for its wait, before anything of it is computed.

        The engine says when it takes a request. If it says nothing, as one that is restarted, the
        time decides: no client is to wait in silence for longer than the queue's limit.
        """
        if self._has_entered or self.max_wait_s is None:
            return False
        return time.perf_counter() - self.started_at < self.max_wait_s + _REFUSAL_S

    def _enter(self) -> None:
        self._has_entered = True

    async def _continued(
        self, choice: Choice, request: EngineRequest
    ) -> AsyncGenerator[ChoiceStep, None]:
        """The beginning that the client gave, then what the engine writes behind it.

        It is shown with the engine's first token: until then the request may be refused. What an
        earlier run showed is not shown again.
        """
        begun = await in_thread(functools.partial(choice.begin, self.plan.begun_ids))
        if self.plan.is_resumed:
            begun = None
        if choice.finish_reason is not None:
            if begun is not None:
                yield begun
            return
        try:
            async with aclosing(self._first_round(choice, request)) as steps:
                async for step in steps:
                    if begun is not None:
                        yield begun
                        begun = None
                    yield step
        except RequestFailed as error:
            if request.grammar is None or choice.latencies.first_at or self.plan.is_resumed:
                raise
            message = f"continue_token_ids does not match this request's grammar: {error}."
            raise RequestError(message, param="continue_token_ids") from error

    def _first_round(
        self, choice: Choice, request: EngineRequest
    ) -> AsyncGenerator[ChoiceStep, None]:
        return (self._rounds if choice.hosted else self._round)(choice, request)

    async def _rounds(
        self, choice: Choice, request: EngineRequest
    ) -> AsyncGenerator[ChoiceStep, None]:
        """One round after the other, as long as each ends with a call of a built-in tool."""
        assert self.plan.hosted is not None
        max_model_len = self._engine.info.max_model_len
        async with self.plan.hosted.toolbox.session(self.plan.context.trace.headers) as session:
            while True:
                async with aclosing(self._round(choice, request)) as steps:
                    async for step in steps:
                        yield step
                if choice.finish_reason is not None:
                    return
                step, request = await _next_round(
                    session, self.plan, choice, request, max_model_len
                )
                yield step
                if choice.finish_reason is not None:
                    return

    async def _round(
        self, choice: Choice, request: EngineRequest
    ) -> AsyncGenerator[ChoiceStep, None]:
        """A run of the engine, and another behind it where the client ends the reasoning."""
        running = request
        while True:
            events = self._engine.generate(running, self._enter)
            events = until(self.plan.context.deadline, events)
            async with aclosing(events):
                async for event in events:
                    if event.num_restarts:
                        self.num_restarts = max(self.num_restarts, event.num_restarts)
                    step = choice.advance(event)
                    if step is not None:
                        yield step
                    if choice.finish_reason is not None or choice.is_calling:
                        return
                    if self._is_told and choice.is_reasoning:
                        break
                else:
                    raise RequestFailed("the engine ended its answer without a finish reason")
            step, running = end_reasoning(self.plan, choice, request, self._engine.info)
            if step is not None:
                yield step
            if choice.finish_reason is not None:
                return

    def end_reasoning(self) -> bool:
        """Have the model reason no more; false where no choice reasons any more."""
        if not any(choice.may_reason for choice in self.choices):
            return False
        self._is_told = True
        return True

    def _refusal(self, error: InvalidGrammar) -> RequestError:
        """The error for the field of the client from which the grammar was made."""
        param, grammar, reason = self.plan.grammar_param, self.plan.grammar, str(error)
        for part in written_parts(grammar) if grammar is not None else ():
            if part.label and reason.startswith(f"{part.label} "):
                return RequestError(f"{reason}.", param=part.label, code=error.code)
        message = f"{param} cannot be enforced: {reason}."
        return RequestError(message, param=param, code=error.code)

    @property
    def was_computed(self) -> bool:
        """Whether the engine took it: not so for what was refused, or ended in the queue."""
        return self._has_entered or bool(self.first_event_at)

    @property
    def num_prompt_tokens(self) -> int:
        results = sum(c.hosted.num_result_tokens for c in self.choices if c.hosted)
        return sum(len(prompt) for prompt in self.plan.prompts) + results + self.plan.num_given

    @property
    def num_completion_tokens(self) -> int:
        return sum(choice.num_tokens - self.plan.num_given for choice in self.choices)

    @property
    def num_reasoning_tokens(self) -> int:
        return sum(choice.num_reasoning_tokens for choice in self.choices)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache; a prompt counts once, whatever its choices."""
        num_cached = [choice.num_cached_tokens for choice in self.choices]
        size = self.plan.num_choices
        return sum(max(num_cached[i : i + size]) for i in range(0, len(num_cached), size))

    @property
    def first_event_at(self) -> float:
        """When the first tokens came (perf_counter), shown or not; 0 when none came."""
        times = (choice.latencies.first_at for choice in self.choices)
        return min((time for time in times if time), default=0.0)

    @property
    def queued_s(self) -> float:
        return max(choice.queued_s for choice in self.choices)

    @property
    def num_resyncs(self) -> int:
        return sum(choice.num_resyncs for choice in self.choices)


async def _next_round(
    session: ToolSession, plan: Plan, choice: Choice, request: EngineRequest, max_model_len: int
) -> tuple[ChoiceStep, EngineRequest]:
    """Run the call that ended a round; give what it shows, and the next round.

    The step has a finish reason where no round can follow.
    """
    calls, hosted = choice.hosted, plan.hosted
    assert calls is not None
    assert hosted is not None
    written = (*request.prompt_token_ids, *choice.round_ids[:-1])
    left = plan.sampling.max_tokens - choice.num_tokens
    # A result may fill the context but for a share: the model has to answer what it reads.
    room = max_model_len - max_model_len // _ANSWER_SHARE - len(written)
    if left < 1 or room <= _MIN_RESULT_TOKENS or calls.is_exhausted:
        return choice.end(), request
    name, result = await in_time(plan.context.deadline, calls.run(session))
    # Encoding a long result takes milliseconds.
    write = plan.format.result_of_call
    added = await asyncio.to_thread(write, name, result.text, max_tokens=room)
    prompt = (*written, *added)
    following = replace(
        request,
        request_id=f"{plan.engine_request(choice.index).request_id}+{calls.num_calls}",
        prompt_token_ids=prompt,
        sampling=replace(request.sampling, max_tokens=min(left, max_model_len - len(prompt))),
        grammar=hosted.next_grammar,
        generated_token_ids=(),
        max_wait_s=None,  # its answer has begun
    )
    return choice.resume(calls.show(result), len(added) - 1), following


def _max_at_once(engine: Engine) -> int:
    """How many answers of one request are with the engine: as many as it has places for, and half
    as many in its queue, so that no place is free until the next one is sent.

    Were a thousand in the queue, other requests of the same tenant would wait for all of them, and
    the processes would hold the prompts and the events of all.
    """
    num_places = engine.info.max_num_seqs
    return num_places + max(num_places // _SPARE_SHARE, 1)


async def _merged(runs: Sequence[_Begin], max_at_once: int) -> AsyncGenerator[ChoiceStep, None]:
    """The steps of several runs in the order they come; the first error ends them all."""
    # While it is full, the engine's client joins what comes for each run.
    queue: asyncio.Queue[ChoiceStep | Exception | None] = asyncio.Queue(
        2 * min(len(runs), max_at_once)
    )
    tasks: set[asyncio.Task[None]] = set()
    beginning = asyncio.create_task(_begin(runs, queue, tasks, asyncio.Semaphore(max_at_once)))
    num_open = len(runs)
    try:
        while num_open:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield item
    finally:
        beginning.cancel()
        await _end([*tasks])
        # An error's traceback has frames that have the queue, or the error itself: cycles around
        # all the runs, which the garbage collector would free in one turn of the loop. For the
        # same reason `beginning` is none of the tasks.
        item = None
        while not queue.empty():
            queue.get_nowait()


async def _begin(
    runs: Sequence[_Begin],
    queue: asyncio.Queue[ChoiceStep | Exception | None],
    tasks: set[asyncio.Task[None]],
    places: asyncio.Semaphore,
) -> None:
    """Begin each run once it has a place, a few in a turn of the loop: a thousand together would
    hold up everybody."""
    for number, begin in enumerate(runs):
        await places.acquire()
        if number % _RUNS_PER_TURN == 0:
            await asyncio.sleep(0)
        task = asyncio.create_task(_pump(begin, queue, places))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel as they were begun: what each has open is closed in the turn of its end."""
    try:
        for start in range(0, len(tasks), _RUNS_PER_TURN):
            some = tasks[start : start + _RUNS_PER_TURN]
            for task in some:
                task.cancel()
            await asyncio.gather(*some, return_exceptions=True)
    finally:  # we may be cancelled meanwhile
        for task in tasks:
            task.cancel()


async def _pump(
    begin: _Begin, queue: asyncio.Queue[ChoiceStep | Exception | None], places: asyncio.Semaphore
) -> None:
    try:
        async with aclosing(begin()) as steps:
            async for step in steps:
                await queue.put(step)
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)
    finally:
        places.release()
