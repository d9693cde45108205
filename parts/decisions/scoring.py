"""The log-probability of every code where an answer begins.

Engines give those of the next token and of the likeliest ones only. So a bias makes a code the next
token: log-probabilities are of the model's own logits, before any bias. The first request tells of
one code and of the likeliest tokens; a code that is still missing is asked for by itself, which
costs one step of the last, uncached tokens of the prompt.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from engines.base import Engine, EngineRequest, SamplingParams, TokenLogprob
from engines.errors import RequestFailed
from service.answer.choice import Choice, ChoiceStep
from service.answer.generation import Generation
from service.answer.plan import Plan
from service.conversation import DeltaKind
from service.request import until

Ids = tuple[int, ...]

_BIAS: Final = 10_000.0  # more than logits differ


@dataclass(frozen=True, slots=True)
class AnswerPlaces:
    """Where answers begin: behind each question about each material."""

    shared: tuple[Ids, ...]  # a prompt's beginning, of each material
    own: tuple[Ids, ...]  # ... and its end, of each question
    codes: tuple[Ids, ...]  # of each question
    is_at_once: bool  # else the model thinks before

    def __len__(self) -> int:
        return len(self.shared) * len(self.own)

    def prompt(self, index: int) -> Ids:
        """Made when it is needed: hundreds of copies of a long text would take gigabytes."""
        material, question = divmod(index, len(self.own))
        return (*self.shared[material], *self.own[question])

    def codes_at(self, index: int) -> Ids:
        return self.codes[index % len(self.own)]


class Scoring(Generation):
    """One run of all questions. A text that they share counts once as a prompt."""

    def __init__(self, engine: Engine, plan: Plan, places: AnswerPlaces) -> None:
        self._places = places
        self.found: list[list[float] | None] = [None] * len(places)  # of each code
        super().__init__(engine, plan)

    def _new_choices(self) -> list[Choice]:
        choices = [Choice(self.plan, index) for index in range(len(self._places))]
        for choice in choices:
            choice.transcript = []
        return choices

    @property
    def num_prompt_tokens(self) -> int:
        shared, own = self._places.shared, self._places.own
        return sum(map(len, shared)) + len(shared) * sum(map(len, own))

    @property
    def num_cached_tokens(self) -> int:
        """Of each material what was cached before its first question was asked."""
        size = len(self._places.own)
        cached = [choice.num_cached_tokens for choice in self.choices]
        firsts = (min(cached[at : at + size]) for at in range(0, len(cached), size))
        return sum(map(min, firsts, map(len, self._places.shared)))

    async def _run(self, choice: Choice) -> AsyncGenerator[ChoiceStep, None]:
        places, index = self._places, choice.index
        codes = places.codes_at(index)
        request = replace(
            self.plan.engine_request(0),
            request_id=f"{self.plan.context.id}-{index}",
            prompt_token_ids=places.prompt(index),
            max_wait_s=self.max_wait_s,
        )
        if places.is_at_once:
            request = replace(request, sampling=_forced(request.sampling, codes[0]))
        at = 0 if places.is_at_once else None
        known: dict[int, float] = {}
        async with aclosing(self._round(choice, request)) as steps:
            async for step in steps:
                at = _answer_at(step) if at is None else at
                if at is not None and not known:
                    known = _known(choice.logprobs[at])
                yield step
        if at is None:
            return
        assert choice.transcript is not None
        place = (*request.prompt_token_ids, *choice.transcript[:at])
        for code in codes:
            if code not in known:
                known[code] = await self._asked(request, place, code)
        self.found[index] = [known[code] for code in codes]

    async def _asked(self, request: EngineRequest, place: Ids, code: int) -> float:
        """The log-probability of a code behind these tokens."""
        sampling = replace(_forced(request.sampling, code), max_tokens=1, logprobs=0)
        forced = replace(
            request,
            request_id=f"{request.request_id}-{code}",
            prompt_token_ids=place,
            sampling=sampling,
            grammar=None,
            max_wait_s=None,  # its answer has begun
        )
        events = until(self.plan.context.deadline, self._engine.generate(forced))
        async with aclosing(events):
            async for event in events:
                for told in event.logprobs or ():
                    if told.token_id == code:
                        return told.logprob
        raise RequestFailed(f"the engine gave no log-probability of token {code}")


def _forced(sampling: SamplingParams, code: int) -> SamplingParams:
    return replace(sampling, logit_bias={code: _BIAS}, temperature=0.0)


def _known(told: TokenLogprob) -> dict[int, float]:
    return {**dict(told.top), told.token_id: told.logprob}


def _answer_at(step: ChoiceStep) -> int | None:
    """The position of the first token of the final message, if the step has it."""
    content = (delta for delta in step.deltas if delta.kind is DeltaKind.CONTENT)
    return next((delta.positions[0] for delta in content if delta.positions), None)
