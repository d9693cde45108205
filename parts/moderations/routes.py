"""POST /v1/moderations: the categories of the operator's policy, as questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from fastapi import Response

from auth.base import Scope
from parts.moderations.policy import Policy
from parts.moderations.schema import ModeratedText, ModerationAnswer, ModerationRequest
from service.answer.choice import ChoiceStep
from service.api.common.operations import json_router
from service.api.common.prompt import runtime_for
from service.conversation import Message
from service.decisions import AnswerScores, CodedQuestion, Decider, Material
from service.errors import RequestError
from service.http.paths import PathRow, RouteGroup, Routes
from service.http.streaming import WholeAnswer
from service.runtime import CurrentContext, CurrentRuntime

router = json_router("Moderations")

# What clients of OpenAI send; each is the served model.
_ALIASES: Final = (
    *("omni-moderation-latest", "omni-moderation-2024-09-26"),
    *("text-moderation-latest", "text-moderation-stable"),
)
_YES_OR_NO: Final = ("yes", "no")


@router.post("/v1/moderations", response_model=ModerationAnswer)
async def create_moderation(
    body: ModerationRequest, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """Rate contents by the categories of the operator's policy."""
    policy, decider = runtime.of(Policy), runtime.of(Decider)  # type: ignore[type-abstract]
    if policy is None or decider is None:
        raise RequestError(
            "This server has no moderation policy: the operator sets NIM_MODERATION_POLICY_PATH.",
            status=404,
            code="route_not_found",
        )
    runtime.lifecycle.check_accepting()
    runtime = runtime_for(None if body.model in _ALIASES else body.model, runtime, context)
    contents = _contents(body.input)
    questions = [
        CodedQuestion(f"{name}\nyes or no", _YES_OR_NO, "input") for name in policy.categories
    ]
    asking = await decider.on(runtime.model.adapter).ask(
        [_material(policy, text, param) for text, param in contents], questions, context
    )

    def ignore(step: ChoiceStep) -> None:
        """The scores are not in the steps."""

    def answer() -> bytes:
        scores, size = asking.scores(), len(questions)
        results = [_result(policy, scores[at : at + size]) for at in range(0, len(scores), size)]
        return msgspec.json.encode(
            {"id": f"modr-{context.id}", "model": runtime.model.id, "results": results}
        )

    return WholeAnswer(runtime, asking.generation, ignore, answer)


def _contents(given: str | Sequence[str | ModeratedText]) -> list[tuple[str, str]]:
    """Each content with its field; parts are one."""
    if isinstance(given, str):
        return [(given, "input")]
    texts = [each for each in given if isinstance(each, str)]
    if texts:
        return [(text, f"input[{at}]") for at, text in enumerate(texts)]
    return [("".join(each.text for each in given if not isinstance(each, str)), "input")]


def _material(policy: Policy, text: str, param: str) -> Material:
    return Material((Message("developer", policy.text), Message("user", text)), (param, param))


def _result(policy: Policy, scores: Sequence[AnswerScores | None]) -> dict[str, Any]:
    pairs = zip(policy.categories.items(), scores, strict=True)
    found = {name: (each, scored.probabilities[0]) for (name, each), scored in pairs if scored}
    flags = {name: score >= each.threshold for name, (each, score) in found.items()}
    return {
        "flagged": any(flags.values()),
        "categories": flags,
        "category_scores": {name: score for name, (_, score) in found.items()},
        "category_applied_input_types": {name: ["text"] for name in found},
    }


ROUTES: Final = (
    Routes(
        rows=(PathRow("/v1/moderations", Scope.INFERENCE, is_generating=True),),
        router=router,
        rank=26,
        groups=(RouteGroup("Moderations", "Texts, rated by the operator's policy.", 36),),
    ),
)
