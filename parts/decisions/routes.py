"""POST /v1/decisions and POST /v1/systemone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from fastapi import Response

from auth.base import Scope
from parts.decisions import figures, wording
from parts.decisions.decider import LabelDecider
from parts.decisions.material import content_text, material_of
from parts.decisions.schema import (
    AskedQuestion,
    ChoiceQuestion,
    Decision,
    DecisionRequest,
    PredicateQuestion,
)
from parts.decisions.systemone import (
    SystemOneAnswers,
    SystemOneRequest,
    shown,
    state_of,
    system_one_questions,
)
from service.answer.choice import ChoiceStep
from service.answer.generation import Generation
from service.api.common.operations import json_router
from service.api.common.prompt import runtime_for
from service.decisions import AnswerScores, Asking, CodedQuestion
from service.http.paths import PathRow, RouteGroup, Routes
from service.http.streaming import WholeAnswer
from service.runtime import CurrentContext, CurrentRuntime
from service.work import in_thread

router = json_router("Decisions")


@router.post("/v1/decisions", response_model=Decision)
async def create_decision(
    body: DecisionRequest, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """Answer questions about a text or a conversation with probabilities."""
    runtime.lifecycle.check_accepting()
    runtime = runtime_for(body.model, runtime, context)
    material = await in_thread(partial(material_of, body.input))
    questions = await in_thread(partial(_questions, body.questions))
    effort = (body.reasoning.effort if body.reasoning else None) or "none"
    asking = await LabelDecider(runtime).ask([material], questions, context, effort)

    def answer() -> dict[str, Any]:
        pairs = zip(body.questions, asking.scores(), strict=True)
        answers = [_answered(question, scores) for question, scores in pairs]
        return {"model": runtime.model.id, "answers": answers, "usage": usage(asking.generation)}

    return whole(runtime, asking, answer)


@router.post("/v1/systemone", response_model=SystemOneAnswers)
async def create_system_one(
    body: SystemOneRequest, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """The same in TypeSafe's form: questions and answers by id."""
    runtime.lifecycle.check_accepting()
    runtime = runtime_for(body.model, runtime, context)
    material = await in_thread(partial(state_of, body.state))
    questions = await in_thread(partial(system_one_questions, body.questions))
    asking = await LabelDecider(runtime).ask([material], questions, context)

    def answer() -> dict[str, Any]:
        pairs = zip(body.questions.items(), asking.scores(), strict=True)
        answers = {id: shown(question, scores) for (id, question), scores in pairs if scores}
        done = asking.generation
        tokens = {
            "input_tokens": done.num_prompt_tokens,
            "output_tokens": done.num_completion_tokens,
        }
        return {"model": runtime.model.id, "answers": answers, "usage": tokens}

    return whole(runtime, asking, answer)


def whole(runtime: CurrentRuntime, asking: Asking, answer: Callable[[], Any]) -> WholeAnswer:
    """The questions, run, and then answered with this object."""

    def ignore(step: ChoiceStep) -> None:
        """The scores are not in the steps."""

    return WholeAnswer(runtime, asking.generation, ignore, lambda: msgspec.json.encode(answer()))


def usage(done: Generation) -> dict[str, Any]:
    num_input, num_output = done.num_prompt_tokens, done.num_completion_tokens
    return {
        "input_tokens": num_input,
        "input_tokens_details": {
            "cached_tokens": done.num_cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": done.num_reasoning_tokens},
        "total_tokens": num_input + num_output,
    }


def _questions(asked: Sequence[AskedQuestion]) -> list[CodedQuestion]:
    return [_question(each, f"questions[{at}]") for at, each in enumerate(asked)]


def _question(asked: AskedQuestion, path: str) -> CodedQuestion:
    text = content_text(asked.instructions)
    if isinstance(asked, PredicateQuestion):
        return wording.predicate(text, f"{path}.instructions")
    if isinstance(asked, ChoiceQuestion):
        options = [(wording.as_text(o.value), o.description or "") for o in asked.choices]
        return wording.choice(text, options, path)
    levels = [(level.label, level.description or "") for level in asked.levels]
    return wording.score(text, levels, path)


def _answered(asked: AskedQuestion, scores: AnswerScores | None) -> dict[str, Any]:
    if scores is None:
        return {"type": "refusal", "name": asked.name}
    answer: dict[str, Any] = {"type": asked.type, "name": asked.name}
    each = scores.probabilities
    if isinstance(asked, PredicateQuestion):
        answer["probability"] = each[0]
    elif isinstance(asked, ChoiceQuestion):
        values = [option.value for option in asked.choices]
        answer["choice"] = values[each.index(max(each))]
        answer["confidence"] = figures.choice_confidence(each)
        answer["probabilities"] = [
            {"value": value, "probability": probability}
            for value, probability in zip(values, each, strict=True)
        ]
    else:
        answer["score"] = figures.expected(each)
        answer["confidence"] = figures.score_confidence(each)
        answer["probabilities"] = [
            {"value": value, "label": level.label, "probability": probability}
            for value, (level, probability) in enumerate(zip(asked.levels, each, strict=True))
        ]
    return answer | {"label_mass": scores.mass}


ROUTES: Final = (
    Routes(
        rows=(
            PathRow("/v1/decisions", Scope.INFERENCE, is_generating=True),
            PathRow("/v1/systemone", Scope.INFERENCE, is_generating=True),
        ),
        router=router,
        rank=24,
        groups=(RouteGroup("Decisions", "Questions with fixed answers, as probabilities.", 34),),
    ),
)
