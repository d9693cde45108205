"""Steps → the bytes of `chat.completion.chunk` events.

This is the hot path: all that does not change in a stream is encoded once, and of a
chunk only the model's text is escaped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from service.answer.choice import Choice, Step, coalesced
from service.answer.generation import Generation
from service.api.common.logprobs import entries
from service.api.common.usage import StreamedUsage, usage_of
from service.harmony.types import Delta, DeltaKind
from service.http.streaming import DataEvents

_encode = msgspec.json.encode


class ChatChunks(DataEvents):
    """Encodes one stream; every method gives whole events, ready to send."""

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
        self._head = b"data: " + _encode(fields)[:-1] + b',"choices":['
        self._generation = generation
        self._has_logprobs = generation.plan.sampling.logprobs is not None
        self._usage = usage
        self._new_call_id = new_call_id
        self._custom_calls: set[tuple[int, int]] = set()  # choice and call
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
        """The chunk that opens each choice."""
        body = b'"role":"assistant","content":""' + self._middle
        return b"".join(start + body for start in self._starts)

    def step(self, step: Step) -> bytes:
        """One chunk for each run of deltas of one kind, and one for the finish reason."""
        if self._usage.always:
            self._set_tail()
        start, deltas = self._starts[step.index], step.deltas
        if len(deltas) == 1:
            chunks = self._chunk(start, step.index, deltas[0])
        else:
            chunks = b"".join(self._chunk(start, step.index, delta) for delta in coalesced(deltas))
        if step.finish_reason is None:
            return chunks
        finish = b'},"logprobs":null,"finish_reason":%b}]' % _encode(step.finish_reason)
        return chunks + start + finish + self._tail

    def end(self) -> bytes:
        """The usage chunk, when it was asked for."""
        if not self._usage.at_end:
            return b""
        usage = usage_of(self._generation).model_dump_json().encode()
        return self._head + b'],"usage":%b}\n\n' % usage

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
        logprobs = _encode({"content": entries(delta, choice.logprobs), "refusal": None})
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
