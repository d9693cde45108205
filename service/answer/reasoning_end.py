"""The end of an answer's reasoning at its client's word, while it is written.

The engine's run is aborted. The next one continues behind all that was written and the end of the
reasoning, token for token, so that it finds its prefix cached.
"""

from __future__ import annotations

from dataclasses import replace

from engines.base import EngineInfo, EngineRequest
from engines.grammar.tree import Grammar
from service.answer.choice import Choice, ChoiceStep
from service.answer.plan import Plan
from service.guide.answer import open_grammar


def end_reasoning(
    plan: Plan, choice: Choice, request: EngineRequest, info: EngineInfo
) -> tuple[ChoiceStep | None, EngineRequest]:
    """End what the model reasons in a run of `request`; give what that shows, and the next run.

    The step has a finish reason where no run can follow.
    """
    ended_by, grammar = plan.format.end_of_reasoning(_whole_grammar(plan, request, info))
    step = choice.force(ended_by)
    prompt = (*request.prompt_token_ids, *choice.round_ids)
    left = min(plan.sampling.max_tokens - choice.num_tokens, info.max_model_len - len(prompt))
    if left < 1:
        return choice.end(), request
    sampling = replace(
        request.sampling,
        max_tokens=left,
        min_tokens=max(request.sampling.min_tokens - choice.num_tokens, 0),
        prompt_logprobs=None,
    )
    following = replace(
        request,
        request_id=f"{request.request_id}-answer",
        prompt_token_ids=prompt,
        sampling=sampling,
        grammar=grammar,
        generated_token_ids=(),
        max_wait_s=None,  # its answer has begun
    )
    return step, following


def _whole_grammar(plan: Plan, request: EngineRequest, info: EngineInfo) -> Grammar | None:
    """The grammar of the whole answer, by which tools may be called; None: text must follow."""
    if request.grammar is not None or not (plan.tool_names or plan.builtins.hosted):
        return request.grammar
    ends_otherwise = plan.stop_token_ids != plan.format.stop_token_ids
    if ends_otherwise or request.sampling.min_tokens or "grammar" in info.capabilities.lacks:
        return None  # a grammar cannot be combined with those
    return open_grammar(plan.format, plan.tool_names, plan.custom_names, plan.builtins.hosted)
