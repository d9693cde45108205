"""Questions as prompts that share what they are about, and their answers as scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, fsum, log
from typing import Final

from engines.base import Adapter, EngineInfo
from engines.validation import first_missing
from parts.decisions.scoring import AnswerPlaces, Scoring
from service.answer.plan import Plan
from service.api.common.plan import AnswerSpec, Guidance, plan_of
from service.api.common.prompt import PromptBound, context_bound, current_date, render_prompt
from service.api.common.schema import SamplingFields
from service.conversation import Conversation, Message
from service.decisions import AnswerScores, CodedQuestion, Effort, Material
from service.errors import RequestError
from service.guide.answer import AnswerFormat
from service.request import RequestContext
from service.runtime import Runtime

Ids = tuple[int, ...]

MOST_THOUGHTS: Final = 256  # tokens, before an answer, of the effort `low`
_HEADER_TOKENS: Final = 16  # around the thoughts, the answer and its end included
_MOST_TOLD: Final = 20  # likeliest tokens, of which the engine tells the log-probabilities
# What the model continues with its answer at once, by format.
_ANSWER_BEGINS: Final = {"harmony": "<|channel|>final<|message|>"}
_BEFORE: Final = Message("user", "-")  # a question's turn is never the first


class LabelDecider:
    """Implements service.decisions.Decider by the log-probabilities of the codes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def on(self, adapter: Adapter | None) -> LabelDecider:
        return self if adapter is None else LabelDecider(self._runtime.with_adapter(adapter))

    async def ask(
        self,
        materials: Sequence[Material],
        questions: Sequence[CodedQuestion],
        context: RequestContext,
        effort: Effort = "none",
    ) -> LabelAsking:
        runtime = self._runtime
        begins = _ANSWER_BEGINS.get(runtime.model.format)
        if begins is None:
            raise _unable(f"its chat format is {runtime.model.format}")
        thinks = effort == "low"
        most = MOST_THOUGHTS + _HEADER_TOKENS if thinks else 1
        info = runtime.engine.info
        codes = self._code_ids(questions)
        shared = [await self._prefix(each, _bound(info, most, each.param)) for each in materials]
        begun = () if thinks else tuple(runtime.format.encode_marked(begins))
        own = await self._suffixes(questions, begun, most)
        longest = max(map(len, own))
        for material, prefix in zip(materials, shared, strict=True):
            _bound(info, most, material.param).check(len(prefix) + longest)
        plan = await self._plan((*shared[0], *own[0]), questions, context, most, thinks=thinks)
        places = AnswerPlaces(tuple(shared), tuple(own), tuple(codes), is_at_once=not thinks)
        return LabelAsking(Scoring(runtime.engine, plan, places))

    async def _plan(
        self,
        prompt: Ids,
        questions: Sequence[CodedQuestion],
        context: RequestContext,
        most: int,
        *,
        thinks: bool,
    ) -> Plan:
        info = self._runtime.engine.info
        guidance = Guidance()
        if thinks:
            answers = tuple(dict.fromkeys(code for each in questions for code in each.codes))
            guidance = Guidance(
                format=AnswerFormat("choice", answers), max_reasoning_tokens=MOST_THOUGHTS
            )
        num_told = info.capabilities.max_logprobs
        spec = AnswerSpec(
            SamplingFields(temperature=0.0),
            most,
            guidance,
            num_logprobs=_MOST_TOLD if num_told is None else min(_MOST_TOLD, num_told),
            keeps_ids=True,
            output="chat" if thinks else "text",
        )
        plan = await plan_of(spec, [prompt], self._runtime, context)
        forced = replace(plan.sampling, logit_bias={0: 1.0})
        asked = replace(plan, sampling=forced).engine_request(0)
        if (lack := first_missing(asked, info.capabilities)) is not None:
            raise _unable(f"the engine lacks {lack.name}")
        return plan

    async def _prefix(self, material: Material, bound: PromptBound) -> Ids:
        """The ids of what the questions are about."""
        params = material.params
        conversation = self._conversation(material.messages, opens_answer=False)
        return await render_prompt(self._runtime.format, conversation, params.__getitem__, bound)

    async def _suffixes(
        self, questions: Sequence[CodedQuestion], begun: Ids, most: int
    ) -> list[Ids]:
        """The ids of each question behind them, up to where its answer begins."""
        format, info = self._runtime.format, self._runtime.engine.info
        before = self._conversation((_BEFORE,), opens_answer=False)
        num_before = len(format.prompt_of(before))
        suffixes: list[Ids] = []
        for question in questions:
            asked = self._conversation((_BEFORE, Message("developer", question.text)))
            bound = _bound(info, most, question.param)
            ids = await render_prompt(format, asked, str, bound)  # no tool answers in it
            suffixes.append((*ids[num_before:], *begun))
        return suffixes

    def _conversation(
        self, messages: tuple[Message, ...], *, opens_answer: bool = True
    ) -> Conversation:
        date = current_date(self._runtime.clock())
        return Conversation(messages, date, reasoning_effort="low", opens_answer=opens_answer)

    def _code_ids(self, questions: Sequence[CodedQuestion]) -> list[Ids]:
        ids: dict[str, int] = {}
        for question in questions:
            for code in question.codes:
                if code not in ids:
                    encoded = self._runtime.format.encode_text(code)
                    if len(encoded) != 1:
                        raise _unable(f"its vocabulary has no token for {code!r}")
                    ids[code] = encoded[0]
        return [tuple(ids[code] for code in question.codes) for question in questions]


class LabelAsking:
    """Implements service.decisions.Asking."""

    def __init__(self, scoring: Scoring) -> None:
        self.generation = scoring

    def scores(self) -> list[AnswerScores | None]:
        return [None if found is None else _scores(found) for found in self.generation.found]


def _scores(logprobs: Sequence[float]) -> AnswerScores:
    """The softmax over the codes: of the logits, and of the log-probabilities just as well."""
    most = max(logprobs)
    weights = [exp(logprob - most) for logprob in logprobs]
    total = fsum(weights)
    mass = min(exp(most + log(total)), 1.0)
    return AnswerScores(tuple(weight / total for weight in weights), mass)


def _bound(info: EngineInfo, most: int, param: str) -> PromptBound:
    return replace(context_bound(info, param), max_tokens=max(info.max_model_len - most, 0))


def _unable(why: str) -> RequestError:
    return RequestError(
        f"This model cannot answer questions with probabilities: {why}. Use /v1/chat/completions.",
        status=501,
        type="server_error",
        code="not_supported",
    )
