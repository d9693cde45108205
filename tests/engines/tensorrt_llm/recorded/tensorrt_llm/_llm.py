"""The LLM of the stand-in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from tensorrt_llm._surface import SURFACE, checked, made
from tensorrt_llm.llmapi import SamplingParams, TorchLlmArgs


@dataclass
class Plan:
    """What the next LLM does."""

    fails_to_start: Exception | None = None
    error: Exception | None = None  # of every request, after `good` tokens
    good: int = 1
    refusal: Exception | None = None  # of generate_async itself
    step_s: float = 0.001
    ends_as: str | None = None  # finish_reason after `good` tokens
    burst: int = 1  # tokens handed on together
    iterations: list[dict[str, Any]] = field(default_factory=list)
    llms: list[LLM] = field(default_factory=list)


plan = Plan()


class LLM:
    """Takes the arguments of TorchLlmArgs and generates from what it was given."""

    def __init__(self, model: str, **given: Any) -> None:
        if plan.fails_to_start is not None:
            raise plan.fails_to_start
        self.given = {"model": model, **given}
        self.args = TorchLlmArgs(**self.given)
        self.results: list[Result] = []
        self.calls: list[dict[str, Any]] = []
        self.num_shutdowns = 0
        plan.llms.append(self)

    def generate_async(self, inputs: Any, **given: Any) -> Result:
        if self.num_shutdowns:
            raise RuntimeError("LLM is shutting down")
        if plan.refusal is not None:
            raise plan.refusal
        known = SURFACE["methods"]["LLM.generate_async"]
        call = checked("generate_async", known, {"inputs": inputs, **given})
        assert call["streaming"]
        assert isinstance(call["sampling_params"], SamplingParams)
        assert call["sampling_params"].end_id is not None  # it has no tokenizer to ask
        self.calls.append(call)
        self.results.append(Result(call))
        return self.results[-1]

    async def _iterations(self) -> AsyncIterator[dict[str, Any]]:
        while plan.iterations:
            yield plan.iterations.pop(0)

    def get_stats_async(self, **given: Any) -> AsyncIterator[dict[str, Any]]:
        checked("get_stats_async", SURFACE["methods"]["LLM.get_stats_async"], given)
        return self._iterations()

    def shutdown(self) -> None:
        self.num_shutdowns += 1


class Result:
    """A RequestOutput: one object whose state each step of the iterator renews."""

    def __init__(self, call: dict[str, Any]) -> None:
        self._prompt = list(call["inputs"]["prompt_token_ids"])
        self._sampling = call["sampling_params"]
        self._ids: list[int] = []
        self.is_aborted = self.finished = False
        self.cached_tokens = 0
        self.outputs: list[Any] = []

    def __aiter__(self) -> Result:
        return self

    async def __anext__(self) -> Result:
        if self.finished:
            raise StopAsyncIteration
        await asyncio.sleep(plan.step_s)
        if plan.error is not None and len(self._ids) >= plan.good:
            raise plan.error
        new, reason = self._step()
        self.finished = reason is not None
        logprobs = [self._logprobs(id) for id in new] if self._sampling.logprobs else []
        self.outputs = [
            made(
                "CompletionOutput",
                token_ids_diff=new,
                logprobs_diff=logprobs,
                finish_reason=reason,
            )
        ]
        return self

    def _step(self) -> tuple[list[int], str | None]:
        new: list[int] = []
        for _ in range(plan.burst):
            known = [*self._prompt, *self._ids]
            new.append(11 + (7 * sum(known) + len(known)) % 49)
            self._ids.append(new[-1])
            if new[-1] in self._sampling.stop_token_ids:
                return new, "stop"
            if len(self._ids) >= self._sampling.max_tokens:
                return new, "length"
            if plan.ends_as is not None and len(self._ids) >= plan.good:
                return new, plan.ends_as
        return new, None

    def _logprobs(self, token_id: int) -> dict[int, Any]:
        rivals = {id: made("Logprob", logprob=-float(id), rank=id) for id in range(1, 3)}
        is_likely = token_id % 2 == 0
        return rivals | ({token_id: made("Logprob", logprob=-0.5, rank=1)} if is_likely else {})

    def abort(self) -> None:
        self.is_aborted = self.finished = True


def iteration(
    *, queued: int = 0, paused: int = 0, used: int = 0, blocks: int = 0
) -> dict[str, Any]:
    """One step's statistics, with names of surface.json alone."""
    names = SURFACE["attributes"]
    cache = {"maxNumBlocks": blocks, "usedNumBlocks": used, "tokensPerBlock": 32}
    batch = {"numPausedRequests": paused}
    whole = {
        "numQueuedRequests": queued,
        "kvCacheStats": cache,
        "inflightBatchingStats": batch,
    }
    assert whole.keys() <= {*names["iteration"]}
    assert cache.keys() <= {*names["kvCacheStats"]}
    assert batch.keys() <= {*names["inflightBatchingStats"]}
    return whole
