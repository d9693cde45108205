"""Steps → one whole `chat.completion`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from service.answer.choice import Step
from service.answer.generation import Generation
from service.api.chat.response_schema import (
    AnswerChoice,
    AnswerCustom,
    AnswerCustomCall,
    AnswerFunction,
    AnswerMessage,
    AnswerToolCall,
    ChatCompletion,
    ChoiceLogprobs,
)
from service.api.common.logprobs import entries
from service.api.common.usage import usage_of
from service.harmony.types import CALL_KINDS, Delta, DeltaKind


class ChatAnswer:
    """Collects the steps of all choices."""

    def __init__(self, generation: Generation, new_call_id: Callable[[], str]) -> None:
        self._generation = generation
        self._new_call_id = new_call_id
        self._messages = [_Message() for _ in generation.choices]

    def add(self, step: Step) -> None:
        message = self._messages[step.index]
        for delta in step.deltas:
            if delta.kind in CALL_KINDS:
                is_custom = delta.kind is DeltaKind.CUSTOM_CALL
                message.calls.append(_Call(self._new_call_id(), delta.name, is_custom))
            else:
                message.add(delta, self._generation.choices[step.index].logprobs)

    def completion(self, *, id: str, model: str, created: int) -> ChatCompletion:
        """The answer, once every choice has ended."""
        return ChatCompletion(
            id=id,
            created=created,
            model=model,
            choices=[self._choice(index) for index in range(len(self._messages))],
            usage=usage_of(self._generation),
        )

    def _choice(self, index: int) -> AnswerChoice:
        message, choice = self._messages[index], self._generation.choices[index]
        assert choice.finish_reason is not None
        has_logprobs = self._generation.plan.sampling.logprobs is not None
        logprobs = {"content": message.logprobs, "refusal": None}
        return AnswerChoice(
            index=index,
            message=message.answer(),
            logprobs=ChoiceLogprobs.model_validate(logprobs) if has_logprobs else None,
            finish_reason=choice.finish_reason,
        )


class _Call:
    def __init__(self, id: str, name: str, is_custom: bool) -> None:
        self.id = id
        self.name = name
        self.arguments: list[str] = []
        self._is_custom = is_custom

    def answer(self) -> AnswerToolCall | AnswerCustomCall:
        text = "".join(self.arguments)
        if self._is_custom:
            return AnswerCustomCall(id=self.id, custom=AnswerCustom(name=self.name, input=text))
        function = AnswerFunction(name=self.name, arguments=text)
        return AnswerToolCall(id=self.id, function=function)


class _Message:
    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[_Call] = []
        self.logprobs: list[dict[str, Any]] = []

    def add(self, delta: Delta, logprobs: list[Any]) -> None:
        if delta.kind is DeltaKind.REASONING:
            self.reasoning.append(delta.text)
        elif delta.kind is DeltaKind.ARGUMENTS:
            self.calls[delta.call_index].arguments.append(delta.text)
        else:
            self.content.append(delta.text)
            if logprobs:
                self.logprobs += entries(delta, logprobs)

    def answer(self) -> AnswerMessage:
        """Content is null only beside tool calls, as OpenAI has it."""
        reasoning = "".join(self.reasoning) or None
        calls = [call.answer() for call in self.calls]
        return AnswerMessage(
            content="".join(self.content) or (None if calls else ""),
            reasoning=reasoning,
            reasoning_content=reasoning,
            tool_calls=calls or None,
        )
