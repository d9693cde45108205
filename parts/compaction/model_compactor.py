"""Summaries by the served model."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import Final

from service.answer.generation import Generation
from service.api.common.plan import AnswerSpec, Guidance, plan_of
from service.api.common.prompt import context_bound, render_prompt
from service.api.common.schema import SamplingFields
from service.compaction import Summary
from service.conversation import Conversation, DeltaKind, Message
from service.errors import RequestError
from service.request import RequestContext
from service.runtime import Runtime
from service.sealing import NotSealed, Seals

MOST_TOKENS: Final = 2048  # of a summary, with the thoughts before it
_MOST_THOUGHTS: Final = 512
_PURPOSE: Final = "compaction"
_TOO_LONG: Final = "context_length_exceeded"

INSTRUCTIONS: Final = """\
Write a summary of this conversation. It will replace the conversation, and you will continue from \
it alone. Keep, in this order:
1. what the user asked for, with every instruction, constraint and preference that still holds;
2. facts, names, numbers, paths, identifiers and decisions that may be needed again, word for word;
3. what was done and found, including tools, files and errors;
4. what is still to be done, and the next step.
Leave out greetings and what was superseded. Call no tool. Write the summary alone."""


class ModelCompactor:
    """Implements service.compaction.Compactor."""

    def __init__(self, runtime: Runtime, seals: Seals) -> None:
        self._runtime = runtime
        self._seals = seals

    async def summarize(
        self, conversation: Conversation, context: RequestContext, instructions: str | None = None
    ) -> Summary:
        """A summary of the conversation; where the context does not hold it, of its newest part."""
        runtime = self._runtime
        asked = (instructions or "").strip() or INSTRUCTIONS
        token_ids = await self._prompt(conversation, Message("user", asked))
        # The answer that follows is another request to the engine.
        own = replace(context, id=f"{context.id}-compaction")
        spec = AnswerSpec(
            SamplingFields(), MOST_TOKENS, Guidance(max_reasoning_tokens=_MOST_THOUGHTS)
        )
        plan = await plan_of(spec, [token_ids], runtime, own)
        generation = context.notes.generation = Generation(runtime.engine, plan)
        texts: list[str] = []
        with runtime.lifecycle.running():
            try:
                async with (
                    runtime.gate.admit(runtime.engine, generation),
                    aclosing(generation.steps()) as steps,
                ):
                    async for step in steps:
                        texts += [d.text for d in step.deltas if d.kind is DeltaKind.CONTENT]
            finally:
                runtime.metrics.observe(generation)
        text = "".join(texts).strip()
        if not text:
            raise RequestError(
                "The model wrote no summary; send the request again, or a shorter conversation.",
                status=500,
                type="server_error",
                code="compaction_failed",
            )
        return Summary(text, generation)

    async def seal(self, text: str, context: RequestContext) -> str:
        return await self._seals.seal(_PURPOSE, context.tenant, text)

    async def open(self, sealed: str, context: RequestContext, param: str) -> str:
        try:
            return await self._seals.open(_PURPOSE, context.tenant, sealed)
        except NotSealed as error:
            raise RequestError(
                f"{param} cannot be read: {error}. Send the conversation without it.",
                param=param,
                code="invalid_compaction_item",
            ) from error

    async def _prompt(self, conversation: Conversation, asked: Message) -> tuple[int, ...]:
        """The prompt of a summary, without the oldest half of the messages as often as needed."""
        info = self._runtime.engine.info
        room = max(info.max_model_len - MOST_TOKENS, info.max_model_len // 2)
        bound = replace(context_bound(info, "input"), max_tokens=room, counts_on=False)
        messages = conversation.messages
        while True:
            asking = replace(
                conversation,
                messages=(*messages, asked),
                tools=(),
                builtins=(),
                response_format=None,
                reasoning_effort="low",
                verbosity="medium",
            )
            try:
                return await render_prompt(self._runtime.format, asking, lambda _: "input", bound)
            except RequestError as error:
                if error.code != _TOO_LONG or len(messages) < 2:
                    raise
            messages = _newer_half(messages)


def _newer_half(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The newer half of the messages, and all instructions; results whose call has left go too."""
    middle = len(messages) // 2
    kept = [m for m in messages[:middle] if m.role in ("system", "developer")]
    called: set[str | None] = set()
    for message in messages[middle:]:
        if message.role != "tool" or message.tool_call_id in called:
            kept.append(message)
            called |= {call.id for call in message.tool_calls}
    return tuple(kept) if len(kept) < len(messages) else messages[-1:]
