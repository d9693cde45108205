"""Built-in tools that this server runs while it answers: the calls of one choice, round by round.

A round is one generation of the engine. A call ends it; its result joins the prompt behind
what the model wrote, token for token, so that the next round finds its prefix cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engines.base import EngineRequest
from engines.grammar.tree import Grammar
from service.harmony.render import render_result
from service.harmony.types import Delta, DeltaKind
from service.harmony.vocabulary import CALL
from service.request.deadline import in_time
from service.tools.toolbox import Toolbox, ToolResult, ToolSession

if TYPE_CHECKING:
    from service.answer.choice import Choice, Step
    from service.answer.plan import Plan

_ANSWER_SHARE = 8  # results leave an eighth of the context for what follows them
_MIN_RESULT_TOKENS = 32
_NO_MORE = ToolResult("Error: no more calls are allowed; answer with what is known.", True)


@dataclass(frozen=True, slots=True)
class Hosted:
    """How an answer's built-in tools are run."""

    toolbox: Toolbox
    max_calls: int
    is_shown: bool = False  # whether the answer has items for the calls
    next_grammar: Grammar | None = None  # of every round but the first


class HostedCalls:
    """The calls of one choice: collects what the model writes to a tool."""

    def __init__(self, hosted: Hosted) -> None:
        self.num_calls = 0
        self.num_result_tokens = 0
        self.round_ids: list[int] = []  # generated since the last result
        self._hosted = hosted
        self._name = ""
        self._input: list[str] = []
        self.is_whole = False  # a call waits for its result

    def take(self, delta: Delta) -> list[Delta]:
        """Take a piece of a call; give the call once it is whole, if it is shown."""
        if delta.kind is DeltaKind.HOSTED_END:
            self.is_whole = True
            return self._shown()
        self._name = delta.name
        self._input.append(delta.text)
        return []

    def cut(self) -> list[Delta]:
        """The call that the answer's end cut off, if it is shown."""
        return self._shown() if self._name and not self.is_whole else []

    def _shown(self) -> list[Delta]:
        call = Delta(DeltaKind.HOSTED_CALL, "".join(self._input), name=self._name)
        return [call] if self._hosted.is_shown else []

    async def run(self, session: ToolSession) -> tuple[str, ToolResult]:
        """Run the call that waits; gives its tool's name and its result."""
        name, written = self._name, "".join(self._input)
        self._name, self._input, self.is_whole = "", [], False
        self.num_calls += 1
        if self.num_calls > self._hosted.max_calls:
            return name, _NO_MORE
        return name, await session.call(name, written)

    @property
    def is_exhausted(self) -> bool:
        """Whether the model went on to call after it was told that it may not."""
        return self.num_calls > self._hosted.max_calls

    def show(self, result: ToolResult) -> Sequence[Delta]:
        """The result, if the client is told."""
        status = "failed" if result.is_error else "completed"
        shown = Delta(DeltaKind.HOSTED_RESULT, result.text, name=status)
        return [shown] if self._hosted.is_shown else []


async def next_round(
    session: ToolSession, plan: Plan, choice: Choice, request: EngineRequest, max_model_len: int
) -> tuple[Step, EngineRequest]:
    """Run the call that ended a round; give what it shows, and the next round.

    The step has a finish reason where no round can follow.
    """
    calls, hosted = choice.hosted, plan.hosted
    assert calls is not None
    assert hosted is not None
    written = (*request.prompt_token_ids, *calls.round_ids[:-1], CALL)
    left = plan.sampling.max_tokens - choice.num_tokens
    room = max_model_len - max_model_len // _ANSWER_SHARE - len(written)
    if left < 1 or room < _MIN_RESULT_TOKENS or calls.is_exhausted:
        return choice.end(), request
    name, result = await in_time(plan.context.deadline, calls.run(session))
    added = await asyncio.to_thread(render_result, name, result.text, max_tokens=room)
    prompt = (*written, *added)
    following = replace(
        request,
        request_id=f"{plan.engine_request(choice.index).request_id}+{calls.num_calls}",
        prompt_token_ids=prompt,
        sampling=replace(request.sampling, max_tokens=min(left, max_model_len - len(prompt))),
        grammar=hosted.next_grammar,
    )
    return choice.resume(calls.show(result), len(added)), following
