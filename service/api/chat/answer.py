"""Steps → one whole `chat.completion`, or the bytes of `chat.completion.chunk` events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
from pydantic import Field

from service.answer.choice import Choice, ChoiceStep, coalesced
from service.answer.generation import Generation
from service.api.common.answer import StreamedUsage, entries, shown_prompt, token_entries, usage_of
from service.api.common.metrics import ShownMetrics, metrics_of
from service.api.common.schema import (
    ResponseModel,
    ShownPromptLogprobs,
    ShownStopReason,
    ShownTier,
    TokenLogprob,
    Usage,
)
from service.conversation import CALL_KINDS, Delta, DeltaKind
from service.http.streaming import DataEvents

_encode = msgspec.json.encode


class ChoiceLogprobs(ResponseModel):
    """The log-probabilities of a choice's tokens."""

    content: list[TokenLogprob]
    refusal: list[TokenLogprob] | None = None  # always null


class AnswerFunction(ResponseModel):
    """The function that the model calls, and its arguments as JSON."""

    name: str
    arguments: str


class AnswerToolCall(ResponseModel):
    """A call of a function."""

    id: str
    type: Literal["function"] = "function"
    function: AnswerFunction


class AnswerCustom(ResponseModel):
    """The custom tool that the model calls, and its input as text."""

    name: str
    input: str


class AnswerCustomCall(ResponseModel):
    """A call of a custom tool."""

    id: str
    type: Literal["custom"] = "custom"
    custom: AnswerCustom


def _is_none(value: object) -> bool:
    return value is None


class UrlCitation(ResponseModel):
    """The page that is cited, and where in `content`."""

    start_index: int
    end_index: int
    url: str
    title: str


class Annotation(ResponseModel):
    """A citation of a page that the built-in tool `browser` showed."""

    type: Literal["url_citation"] = "url_citation"
    url_citation: UrlCitation


class AnswerMessage(ResponseModel):
    """`reasoning_content` repeats `reasoning` for clients that read that name."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None  # always null
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[AnswerToolCall | AnswerCustomCall] | None = Field(
        None, exclude_if=_is_none, description="Absent if there are none."
    )
    annotations: list[Annotation] | None = Field(
        None, exclude_if=_is_none, description="Absent if there are none."
    )


_ASKED_FOR: Final = "Only with `return_token_ids`."


class NamedLogprob(ResponseModel):
    """A token by its id and text, and its log-probability."""

    id: int
    token: str
    logprob: float


class NamedTokenLogprob(NamedLogprob):
    """A token of the answer, and the likeliest at its place."""

    top_logprobs: list[NamedLogprob]


class AnswerChoice(ResponseModel):
    """One of the answers, and why it ended."""

    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: ShownStopReason = None
    token_ids: list[int] | None = Field(None, exclude_if=_is_none, description=_ASKED_FOR)
    token_logprobs: list[NamedTokenLogprob | None] | None = Field(
        None, exclude_if=_is_none, description="Only with `return_token_logprobs`."
    )


class ChatCompletion(ResponseModel):
    """An answer that is not streamed."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: Usage
    metrics: ShownMetrics = None
    service_tier: ShownTier = None
    prompt_token_ids: list[int] | None = Field(None, exclude_if=_is_none, description=_ASKED_FOR)
    prompt_logprobs: ShownPromptLogprobs = None


class ChatAnswer:
    """Collects the steps of all choices into one `chat.completion`."""

    def __init__(self, generation: Generation, new_call_id: Callable[[], str]) -> None:
        self._generation = generation
        self._new_call_id = new_call_id
        self._messages = [_Message() for _ in generation.choices]

    def add(self, step: ChoiceStep) -> None:
        message = self._messages[step.index]
        if self._generation.plan.keeps_logprobs:
            choice, start = self._generation.choices[step.index], len(message.all_logprobs)
            message.all_logprobs += token_entries(choice, start, choice.num_tokens)
        for delta in step.deltas:
            if delta.kind in CALL_KINDS:
                is_custom = delta.kind is DeltaKind.CUSTOM_CALL
                message.calls.append(_Call(self._new_call_id(), delta.name, is_custom))
            else:
                message.add(delta, self._generation.choices[step.index])

    def body(self, *, id: str, model: str, created: int) -> bytes:
        completion = ChatCompletion(
            id=id,
            created=created,
            model=model,
            choices=[self._choice(index) for index in range(len(self._messages))],
            usage=usage_of(self._generation),
            metrics=metrics_of(self._generation),
            service_tier=self._generation.plan.shown_tier,
            prompt_token_ids=_prompt_ids(self._generation),
        )
        document = completion.model_dump()
        if self._generation.plan.sampling.logprobs is not None:
            for choice, message in zip(document["choices"], self._messages, strict=True):
                choice["logprobs"] = _logprobs(message.logprobs)  # large, and written already
                if self._generation.plan.keeps_logprobs:
                    choice["token_logprobs"] = message.all_logprobs
        if (num_top := self._generation.plan.sampling.prompt_logprobs) is not None:
            choice = self._generation.choices[0]
            packed, format = choice.prompt_logprobs, choice.format
            prompt = self._generation.plan.prompt_token_ids
            document["prompt_logprobs"] = shown_prompt(packed, prompt, num_top, format)
        return _encode(document)

    def _choice(self, index: int) -> AnswerChoice:
        message, choice = self._messages[index], self._generation.choices[index]
        assert choice.finish_reason is not None
        return AnswerChoice(
            index=index,
            message=message.answer(choice),
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            token_ids=choice.kept_ids if self._generation.plan.keeps_ids else None,
        )


def _prompt_ids(generation: Generation) -> list[int] | None:
    plan = generation.plan
    return list(plan.prompt_token_ids) if plan.keeps_ids else None


def _logprobs(content: list[msgspec.Raw]) -> dict[str, Any]:
    return {"content": content, "refusal": None}


class _Call:
    """One tool call while its arguments come."""

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
    """One choice's message while its deltas come."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[_Call] = []
        self.logprobs: list[msgspec.Raw] = []
        self.all_logprobs: list[msgspec.Raw] = []  # also of reasoning and control tokens

    def add(self, delta: Delta, choice: Choice) -> None:
        if delta.kind is DeltaKind.REASONING:
            self.reasoning.append(delta.text)
        elif delta.kind is DeltaKind.ARGUMENTS:
            self.calls[delta.call_index].arguments.append(delta.text)
        else:
            self.content.append(delta.text)
            if choice.logprobs:
                self.logprobs += entries(delta, choice.logprobs, choice.format)

    def answer(self, choice: Choice) -> AnswerMessage:
        """The message as the answer has it; content is null only beside tool calls, as OpenAI has
        it."""
        content = "".join(self.content)
        reasoning = "".join(self.reasoning) or None
        calls = [call.answer() for call in self.calls]
        return AnswerMessage(
            content=content or (None if calls else ""),
            reasoning=reasoning,
            reasoning_content=reasoning,
            tool_calls=calls or None,
            annotations=cited_in(choice, content) or None,
        )


def cited_in(choice: Choice, content: str) -> list[Annotation]:
    """What a choice's text cites."""
    cited = choice.hosted.sources.cited(content) if choice.hosted else []
    return [Annotation(url_citation=UrlCitation.model_validate(each.fields)) for each in cited]


class ChatChunks(DataEvents):
    """Encodes one stream's chunks; every method gives whole events, ready to send.

    This is the hot path: all that does not change in a stream is encoded once, and of a chunk only
    the model's text is escaped.
    """

    def __init__(
        self,
        generation: Generation,
        *,
        id: str,
        model: str,
        created: int,
        usage: StreamedUsage,
        new_call_id: Callable[[], str],
    ) -> None:
        fields = {"id": id, "object": "chat.completion.chunk", "created": created, "model": model}
        if (tier := generation.plan.shown_tier) is not None:
            fields["service_tier"] = tier
        # Without the closing brace: the choices of each chunk follow.
        self._head = b"data: " + _encode(fields)[:-1] + b',"choices":['
        self._generation = generation
        self._has_logprobs = generation.plan.sampling.logprobs is not None
        self._usage = usage
        self._new_call_id = new_call_id
        self._custom_calls: set[tuple[int, int]] = set()  # choice and call
        self._nums_sent = [0] * len(generation.choices)  # ids of each choice, if wanted
        # What each choice wrote, where it may cite what it read.
        self._contents: list[list[str]] | None = None
        if generation.plan.hosted is not None:
            self._contents = [[] for _ in generation.choices]
        self._starts = [
            self._head + b'{"index":%d,"delta":{' % index
            for index in range(generation.plan.num_choices)
        ]
        self._set_tail()

    def _set_tail(self) -> None:
        """How chunks end; the same in the whole stream unless each has its own usage."""
        self._tail = self._usage.field(self._generation) + b"}\n\n"
        self._middle = b'},"logprobs":null,"finish_reason":null}]' + self._tail

    def begin(self) -> bytes:
        body = b'"role":"assistant","content":""' + self._middle
        opening = b"".join(start + body for start in self._starts)
        if (ids := _prompt_ids(self._generation)) is None:
            return opening
        return self._head + b'],"prompt_token_ids":%b' % _encode(ids) + self._tail + opening

    def step(self, step: ChoiceStep) -> bytes:
        """One chunk for each run of deltas of one kind, and one for the finish reason."""
        if self._usage.always:
            self._set_tail()
        start, deltas = self._starts[step.index], step.deltas
        if len(deltas) == 1:
            chunks = self._chunk(start, step.index, deltas[0])
        else:
            chunks = b"".join(self._chunk(start, step.index, delta) for delta in coalesced(deltas))
        if self._generation.plan.keeps_ids:
            chunks = self._token_ids(start, step.index) + chunks
        if self._contents is not None:
            texts = (delta.text for delta in deltas if delta.kind is DeltaKind.CONTENT)
            self._contents[step.index].extend(texts)
        if step.finish_reason is None:
            return chunks
        chunks += self._annotations(start, step.index)
        finish = b'},"logprobs":null,"finish_reason":%b' % _encode(step.finish_reason)
        if (reason := self._generation.choices[step.index].stop_reason) is not None:
            finish += b',"stop_reason":%b' % _encode(reason)
        finish += b"}]" + self._usage.finish(self._generation)
        return chunks + start + finish + self._tail

    def end(self) -> bytes:
        if not self._usage.at_end:
            return b""
        return self._head + b"]%b}\n\n" % self._usage.last(self._generation)

    def _annotations(self, start: bytes, index: int) -> bytes:
        """A chunk of what the whole text cites; none if it cites nothing."""
        if self._contents is None:
            return b""
        found = cited_in(self._generation.choices[index], "".join(self._contents[index]))
        shown = _encode([each.model_dump() for each in found])
        return start + b'"annotations":' + shown + self._middle if found else b""

    def _token_ids(self, start: bytes, index: int) -> bytes:
        """A separate chunk: the ids since the last, also of tokens without text."""
        ids = self._generation.choices[index].kept_ids[self._nums_sent[index] :]
        self._nums_sent[index] += len(ids)
        chunk = b'},"logprobs":null,"finish_reason":null,"token_ids":%b' % _encode(ids)
        if self._generation.plan.keeps_logprobs:
            end = self._nums_sent[index]
            choice = self._generation.choices[index]
            chunk += b',"token_logprobs":%b' % _encode(token_entries(choice, end - len(ids), end))
        return start + chunk + b"}]" + self._tail

    def _chunk(self, start: bytes, index: int, delta: Delta) -> bytes:
        kind = delta.kind
        if kind is DeltaKind.CONTENT:
            if self._has_logprobs:
                return self._content_with_logprobs(start, self._generation.choices[index], delta)
            return start + b'"content":' + _encode(delta.text) + self._middle
        if kind is DeltaKind.REASONING:
            text = _encode(delta.text)
            return start + b'"reasoning":%b,"reasoning_content":%b' % (text, text) + self._middle
        if kind is DeltaKind.ARGUMENTS:
            return start + b'"tool_calls":[%b]' % self._arguments(index, delta) + self._middle
        return start + b'"tool_calls":[%b]' % _encode(self._call(index, delta)) + self._middle

    def _content_with_logprobs(self, start: bytes, choice: Choice, delta: Delta) -> bytes:
        content = b'"content":%b},"logprobs":' % _encode(delta.text)
        logprobs = _encode(_logprobs(entries(delta, choice.logprobs, choice.format)))
        return start + content + logprobs + b',"finish_reason":null}]' + self._tail

    def _call(self, index: int, delta: Delta) -> dict[str, Any]:
        call = delta.call_index
        if delta.kind is DeltaKind.CUSTOM_CALL:
            self._custom_calls.add((index, call))
            custom = {"name": delta.name, "input": ""}
            return {"index": call, "id": self._new_call_id(), "type": "custom", "custom": custom}
        function = {"name": delta.name, "arguments": ""}
        head = {"index": call, "id": self._new_call_id(), "type": "function"}
        return {**head, "function": function}

    def _arguments(self, index: int, delta: Delta) -> bytes:
        form = b'{"index":%d,"function":{"arguments":%b}}'
        if (index, delta.call_index) in self._custom_calls:
            form = b'{"index":%d,"custom":{"input":%b}}'
        return form % (delta.call_index, _encode(delta.text))
