"""A scripted engine: the token ids are given, everything else behaves like a real engine.

It lets the service, the engine process and the benchmarks of the layers above run
without a model. All running streams advance together, one step at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import runpy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from engines import start_steps
from engines.base import PROBE_ID, EngineInfo, EngineRequest, EngineStats, Receive, TokenEvent
from engines.errors import (
    EngineDead,
    EngineError,
    EngineStartError,
    InvalidRequest,
    OutOfMemory,
    PromptTooLong,
    RequestFailed,
)
from engines.queueing.admission import QueuedEngine
from tests.fake.faults import Stalled, strike
from tests.fake.sequence import FakeOptions, FakePrefixCache, FakeSequence

Script = Callable[[EngineRequest], Sequence[int]]


class FakeEngine(QueuedEngine[FakeSequence]):
    """The scripted engine behind its queue; `script` may replace the options' scripts."""

    def __init__(self, options: FakeOptions, script: Script | None = None) -> None:
        super().__init__(FakeRunner(options, script), options.max_num_waiting)

    @classmethod
    def from_json(cls, options: Mapping[str, Any]) -> FakeEngine:
        """Make an engine from JSON options; raises EngineStartError for a wrong one."""
        try:
            return cls(msgspec.convert(options, FakeOptions))
        except msgspec.ValidationError as error:
            known = ", ".join(FakeOptions.__struct_fields__)
            raise EngineStartError(f"engine 'fake': {error} (known options: {known})") from None


class FakeRunner:
    """Generates scripted token ids; implements engines.base.Runner."""

    def __init__(self, options: FakeOptions, script: Script | None) -> None:
        self._options = options
        self._script = script or _script_of(options)
        self._waiting: list[FakeSequence] = []  # for the next step
        self._running: list[FakeSequence] = []
        self._num_blocks = options.max_num_seqs * options.num_blocks(options.max_model_len)
        self._prefixes = FakePrefixCache(options.block_size, self._num_blocks)
        self._num_prompt = self._num_generated = self._num_cached = 0
        self._num_steps = 0
        self._work = asyncio.Event()
        self._stepping: asyncio.Task[None] | None = None

    @property
    def info(self) -> EngineInfo:
        options = self._options
        return EngineInfo(
            engine="fake",
            version="1",
            max_model_len=options.max_model_len,
            vocab_size=options.vocab_size,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_seqs * options.max_model_len,
            capabilities=options.capabilities,
        )

    async def start(self) -> None:
        """Start stepping; raises EngineStartError when the options ask for it."""
        start_steps.begin(self._options.start_step)
        await asyncio.sleep(self._options.start_s)
        if self._options.start_error is not None:
            raise EngineStartError(self._options.start_error)
        self._stepping = asyncio.create_task(self._run(), name="fake-engine")

    async def prepare(self, request: EngineRequest) -> FakeSequence:
        if self._stepping is None:
            raise EngineDead("the engine is not running")
        _check(request, self._options)
        num_generated = len(request.generated_token_ids)
        return FakeSequence(request, self._script(request), num_generated=num_generated)

    def num_cached_tokens(self, run: FakeSequence) -> int | None:
        return None

    def begin(self, run: FakeSequence, receive: Receive, arrived_s: float) -> None:
        if self._stepping is None:
            raise EngineDead("the engine is not running")
        run.receive, run.arrived_s = receive, arrived_s
        self._waiting.append(run)
        self._work.set()

    def abort(self, run: FakeSequence) -> None:
        for sequences in (self._waiting, self._running):
            if run in sequences:
                sequences.remove(run)
        if not self._running and not self._waiting:
            self._work.clear()

    async def stats(self) -> EngineStats:
        num_used = sum(self._options.num_blocks(sequence.num_tokens) for sequence in self._running)
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_kv_blocks=self._num_blocks,
            num_free_kv_blocks=self._num_blocks - num_used,
            num_steps=self._num_steps,
            prompt_tokens=self._num_prompt,
            generated_tokens=self._num_generated,
            prefix_cache_queries=self._num_prompt,
            prefix_cache_hits=self._num_cached,
            kv_block_size=self._options.block_size,
        )

    async def check_health(self) -> None:
        """Raise EngineDead before start and after stop."""
        if self._stepping is None:
            raise EngineDead("the engine is not running")

    async def stop(self) -> None:
        """End running requests with EngineDead."""
        stepping, self._stepping = self._stepping, None
        if stepping is not None:
            stepping.cancel()
            await asyncio.wait([stepping])
        for sequence in [*self._running, *self._waiting]:
            self._end(sequence, EngineDead("the engine was stopped"))

    def _end(self, sequence: FakeSequence, outcome: TokenEvent | EngineError) -> None:
        self.abort(sequence)
        sequence.receive(outcome)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        step_s = self._options.step_s
        due = loop.time()
        while True:
            await self._work.wait()
            try:
                self._step()
            except Stalled:
                await asyncio.Event().wait()
            self._num_steps += 1
            due = max(due + step_s, loop.time())
            await asyncio.sleep(due - loop.time() if step_s else 0)

    def _step(self) -> None:
        waiting, self._waiting = self._waiting, []
        for sequence in waiting:
            self._prefill(sequence)
        for sequence in list(self._running):
            self._advance(sequence)

    def _prefill(self, sequence: FakeSequence) -> None:
        sequence.num_cached_tokens = self._prefixes.look_up(sequence.request)
        sequence.queued_s = time.monotonic() - sequence.arrived_s
        num_prompt = len(sequence.request.prompt_token_ids)
        self._num_prompt += num_prompt
        self._num_cached += sequence.num_cached_tokens
        self._running.append(sequence)

    def _advance(self, sequence: FakeSequence) -> None:
        num_tokens, fail_at = self._options.tokens_per_step, self._options.fail_at
        if fail_at is not None and sequence.num_generated >= fail_at:
            self._end(sequence, RequestFailed(f"the script fails after {fail_at} tokens"))
            return
        try:
            strike(self._options.faults, sequence.request.prompt_token_ids, sequence.num_generated)
        except OutOfMemory as error:
            self._end(sequence, error)
            return
        if fail_at is not None:
            num_tokens = min(num_tokens, fail_at - sequence.num_generated)
        event = sequence.advance(num_tokens, self._options)
        num_tokens = len(event.token_ids)
        self._num_generated += num_tokens
        if event.finish_reason is None:
            sequence.receive(event)
        else:
            self._end(sequence, event)


def _script_of(options: FakeOptions) -> Script:
    scripts = options.scripts or (options.script,)
    if sum(map(bool, (options.script, options.scripts, options.script_file))) > 1:
        raise EngineStartError(
            "engine 'fake': give one of 'script', 'scripts' and 'script_file', not several"
        )
    if options.script_file:
        write = runpy.run_path(options.script_file)["write"]
        return lambda request: write(request.prompt_token_ids)
    if not all(scripts):
        raise EngineStartError("engine 'fake': 'script' (token ids) is required and has no ids")
    turns = itertools.cycle(scripts)
    return lambda request: scripts[0] if request.request_id == PROBE_ID else next(turns)


def _check(request: EngineRequest, options: FakeOptions) -> None:
    prompt, max_tokens = request.prompt_token_ids, request.sampling.max_tokens
    if not prompt:
        raise InvalidRequest("prompt_token_ids is empty; give at least one token")
    if not (min(prompt) >= 0 and max(prompt) < options.vocab_size):
        raise InvalidRequest(
            f"prompt_token_ids has an id outside the vocabulary of {options.vocab_size} tokens"
        )
    if max_tokens < 1:
        raise InvalidRequest(f"max_tokens is {max_tokens}; use 1 or more")
    if len(prompt) >= options.max_model_len:
        raise PromptTooLong(
            f"the prompt has {len(prompt)} tokens and the context length is "
            f"{options.max_model_len}, answer included; shorten the prompt"
        )
