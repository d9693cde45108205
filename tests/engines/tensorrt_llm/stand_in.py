"""A stand-in with the names of surface.json: it refuses any other name, and values it lacks.

Each test says what its LLM does (`Plan`); without a word it generates from what it is given, so
that the same prompt has the same answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

SURFACE = json.loads(Path(__file__).with_name("surface.json").read_text())
CLASSES, METHODS = SURFACE["classes"], SURFACE["methods"]
ATTRIBUTES = SURFACE["attributes"]


def checked(what: str, known: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """All parameters with their values; raises TypeError and ValueError as strict classes do."""
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"{what} got an unexpected keyword argument {name!r}")
        choices = known[name].get("one_of")
        if choices is not None and value not in choices:
            raise ValueError(f"{what}.{name} is {value!r}; it takes {choices}")
        kind = known[name].get("class")
        if kind is not None and value is not None and type(value).__name__ != kind:
            raise ValueError(f"{what}.{name} is no {kind}: {value!r}")
    for name, has in known.items():
        if has.get("is_needed") and given.get(name) is None:
            raise ValueError(f"{what}.{name} is missing")
    return {name: given.get(name, has.get("default")) for name, has in known.items()}


def class_of(name: str) -> type:
    """A class that takes the parameters of one of TensorRT-LLM's, by name only."""
    known = CLASSES[name]

    def __init__(self: Any, **given: Any) -> None:
        self.__dict__ |= checked(name, known, given)
        self.given = given

    return type(name, (), {"__init__": __init__, "model_fields": known})


def made(name: str, **values: Any) -> Any:
    """An object with attributes of a class that TensorRT-LLM makes itself; it has no other."""
    assert values.keys() <= {*ATTRIBUTES[name]}, name
    return SimpleNamespace(**values)


class RequestError(RuntimeError):
    """An error of one request."""


MADE: dict[str, Any] = {name: class_of(name) for name in CLASSES}
TorchLlmArgs, SamplingParams = MADE["TorchLlmArgs"], MADE["SamplingParams"]


def modules(plan: Plan) -> dict[str, ModuleType]:
    """What is imported by these names."""
    whole, llmapi = ModuleType("tensorrt_llm"), ModuleType("tensorrt_llm.llmapi")
    whole.__spec__ = ModuleSpec("tensorrt_llm", None)
    here = {
        whole: {"LLM": lambda **given: LLM(plan, **given), "__version__": "1.2.1"},
        llmapi: {**MADE, "RequestError": RequestError},
    }
    for module, things in here.items():
        for name in SURFACE["exports"][module.__name__]:
            setattr(module, name, things[name])
    whole.llmapi = llmapi  # type: ignore[attr-defined]
    return {module.__name__: module for module in here}


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


class LLM:
    """Takes the arguments of TorchLlmArgs and generates from what it was given."""

    def __init__(self, plan: Plan, **given: Any) -> None:
        if plan.fails_to_start is not None:
            raise plan.fails_to_start
        self.plan, self.given = plan, given
        self.args = TorchLlmArgs(**given)
        self.results: list[Result] = []
        self.calls: list[dict[str, Any]] = []
        self.num_shutdowns = 0
        plan.llms.append(self)

    def generate_async(self, inputs: Any, **given: Any) -> Result:
        if self.num_shutdowns:
            raise RuntimeError("LLM is shutting down")
        if self.plan.refusal is not None:
            raise self.plan.refusal
        known = METHODS["LLM.generate_async"]
        call = checked("generate_async", known, {"inputs": inputs, **given})
        assert call["streaming"]
        assert isinstance(call["sampling_params"], SamplingParams)
        assert call["sampling_params"].end_id is not None  # it has no tokenizer to ask
        self.calls.append(call)
        self.results.append(Result(self.plan, call))
        return self.results[-1]

    async def _iterations(self) -> AsyncIterator[dict[str, Any]]:
        while self.plan.iterations:
            yield self.plan.iterations.pop(0)

    def get_stats_async(self, **given: Any) -> AsyncIterator[dict[str, Any]]:
        checked("get_stats_async", METHODS["LLM.get_stats_async"], given)
        return self._iterations()

    def shutdown(self) -> None:
        self.num_shutdowns += 1


class Result:
    """A RequestOutput: one object whose state each step of the iterator renews."""

    def __init__(self, plan: Plan, call: dict[str, Any]) -> None:
        self._plan = plan
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
        await asyncio.sleep(self._plan.step_s)
        if self._plan.error is not None and len(self._ids) >= self._plan.good:
            raise self._plan.error
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
        for _ in range(self._plan.burst):
            known = [*self._prompt, *self._ids]
            new.append(11 + (7 * sum(known) + len(known)) % 49)
            self._ids.append(new[-1])
            if new[-1] in self._sampling.stop_token_ids:
                return new, "stop"
            if len(self._ids) >= self._sampling.max_tokens:
                return new, "length"
            if self._plan.ends_as is not None and len(self._ids) >= self._plan.good:
                return new, self._plan.ends_as
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
    cache = {"maxNumBlocks": blocks, "usedNumBlocks": used, "tokensPerBlock": 32}
    batch = {"numPausedRequests": paused}
    whole = {
        "numQueuedRequests": queued,
        "kvCacheStats": cache,
        "inflightBatchingStats": batch,
    }
    assert whole.keys() <= {*ATTRIBUTES["iteration"]}
    assert cache.keys() <= {*ATTRIBUTES["kvCacheStats"]}
    assert batch.keys() <= {*ATTRIBUTES["inflightBatchingStats"]}
    return whole
