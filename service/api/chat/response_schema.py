"""The answer of POST /v1/chat/completions when it is not streamed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.api.common.schema import ResponseModel, TokenLogprob, Usage


class ChoiceLogprobs(ResponseModel):
    content: list[TokenLogprob]
    refusal: None = None


class AnswerFunction(ResponseModel):
    name: str
    arguments: str


class AnswerToolCall(ResponseModel):
    id: str
    type: Literal["function"] = "function"
    function: AnswerFunction


class AnswerCustom(ResponseModel):
    name: str
    input: str


class AnswerCustomCall(ResponseModel):
    id: str
    type: Literal["custom"] = "custom"
    custom: AnswerCustom


def _is_none(value: object) -> bool:
    return value is None


class AnswerMessage(ResponseModel):
    """`reasoning_content` repeats `reasoning` for clients that read that name."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[AnswerToolCall | AnswerCustomCall] | None = Field(
        None, exclude_if=_is_none, description="Left out where there are none."
    )


class AnswerChoice(ResponseModel):
    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(ResponseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: Usage
