"""Steps → `text_completion` objects: one whole, or the bytes of a stream of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from parts.completions.logprobs import EchoedLogprobs, LegacyLogprobs
from parts.completions.schema import Completion, CompletionChoice
from service.answer.choice import AnswerFinish, Choice, ChoiceStep
from service.answer.generation import Generation
from service.answer.tiers import Tier
from service.api.common.answer import StreamedUsage, shown_prompt, usage_of
from service.api.common.metrics import metrics_of
from service.http.streaming import DataEvents

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class CompletionHead:
    """The fields with which every object of one answer begins."""

    id: str
    created: int  # seconds since 1970
    model: str
    service_tier: Tier | None = None


class _Text:
    """The new text of one choice, and the log-probabilities of its tokens."""

    def __init__(self, choice: Choice, echo: str, has_logprobs: bool) -> None:
        self._choice = choice
        self._logprobs: LegacyLogprobs | None = None
        if has_logprobs:
            # Beside those of the prompt each generated token has an entry: programs count them.
            self._logprobs = LegacyLogprobs(choice.format, len(echo), has_all=bool(echo))

    def add(self, step: ChoiceStep) -> str:
        if self._logprobs is not None:
            for delta in step.deltas:
                self._logprobs.add(delta, self._choice.logprobs)
        return "".join(delta.text for delta in step.deltas)

    def finish(self) -> None:
        """Take the tokens after the last visible one."""
        if self._logprobs is not None:
            self._logprobs.finish(self._choice.logprobs)

    def take_logprobs(self) -> dict[str, list[Any]] | None:
        """The log-probabilities since the last call, if they are wanted."""
        return self._logprobs.take() if self._logprobs else None


def _texts(generation: Generation, echoes: Sequence[str]) -> list[_Text]:
    has_logprobs = generation.plan.sampling.logprobs is not None
    return [
        _Text(choice, echo, has_logprobs)
        for choice, echo in zip(generation.choices, echoes, strict=True)
    ]


class CompletionAnswer:
    """Collects the steps of all choices into one answer; `echoes` stand before their texts."""

    def __init__(
        self,
        generation: Generation,
        head: CompletionHead,
        echoes: Sequence[str],
        num_prompt_logprobs: int | None = None,
    ) -> None:
        """`num_prompt_logprobs`: likeliest tokens shown beside each of the prompt's."""
        self._num_top = num_prompt_logprobs
        self._generation = generation
        self._head = head
        self._pieces = [[echo] for echo in echoes]
        self._texts = _texts(generation, echoes)

    def add(self, step: ChoiceStep) -> None:
        self._pieces[step.index].append(self._texts[step.index].add(step))

    def body(self) -> bytes:
        document = self._completion().model_dump()
        for index, choice in enumerate(document["choices"]):
            choice |= self._scores(index)  # large, and written already
        return _encode(document)

    def _scores(self, index: int) -> dict[str, Any]:
        """The log-probabilities of a choice, and those of its prompt."""
        plan, choice = self._generation.plan, self._generation.choices[index]
        text = self._texts[index]
        prompt = plan.prompts[index // plan.num_choices]
        text.finish()
        found: dict[str, Any] = {"logprobs": text.take_logprobs()}
        if self._num_top is not None:
            found["prompt_logprobs"] = shown_prompt(
                choice.prompt_logprobs, prompt, self._num_top, plan.format
            )
        num_top = plan.sampling.logprobs
        if self._pieces[index][0] and num_top is not None:
            echoed = EchoedLogprobs(plan.format, prompt, num_top).columns(choice.prompt_logprobs)
            found["logprobs"] = {name: of + found["logprobs"][name] for name, of in echoed.items()}
        return found

    def _completion(self) -> Completion:
        return Completion(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=[self._choice(index) for index in range(len(self._texts))],
            usage=usage_of(self._generation),
            metrics=metrics_of(self._generation),
            service_tier=self._head.service_tier,
        )

    def _choice(self, index: int) -> CompletionChoice:
        return CompletionChoice(
            index=index,
            text="".join(self._pieces[index]),
            finish_reason=_finish_reason(self._generation.choices[index].finish_reason),
            stop_reason=self._generation.choices[index].stop_reason,
        )


class CompletionChunks(DataEvents):
    """Encodes one stream's chunks; every method gives whole events, ready to send."""

    def __init__(
        self,
        generation: Generation,
        head: CompletionHead,
        echoes: Sequence[str],
        usage: StreamedUsage,
    ) -> None:
        fields = {
            "id": head.id,
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
        }
        if head.service_tier is not None:
            fields["service_tier"] = head.service_tier
        self._head = b"data: " + _encode(fields)[:-1] + b',"choices":['
        self._generation = generation
        self._usage = usage
        self._echoes = echoes
        self._texts = _texts(generation, echoes)

    def begin(self) -> bytes:
        """The chunks of the prompts, when they are echoed."""
        return b"".join(
            self._chunk(index, echo, None, None) for index, echo in enumerate(self._echoes) if echo
        )

    def step(self, step: ChoiceStep) -> bytes:
        text = self._texts[step.index]
        new_text = text.add(step)
        reason = _finish_reason(step.finish_reason) if step.finish_reason else None
        return self._chunk(step.index, new_text, text.take_logprobs(), reason)

    def end(self) -> bytes:
        if not self._usage.at_end:
            return b""
        return self._head + b"]%b}\n\n" % self._usage.last(self._generation)

    def _chunk(
        self, index: int, text: str, logprobs: dict[str, list[Any]] | None, reason: str | None
    ) -> bytes:
        body = b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b'
        chunk = body % (index, _encode(text), _encode(logprobs), _encode(reason))
        stop = self._generation.choices[index].stop_reason if reason else None
        if stop is not None:
            chunk += b',"stop_reason":%b' % _encode(stop)
        chunk += b"}]" + self._usage.field(self._generation)
        if reason:
            chunk += self._usage.finish(self._generation)
        return self._head + chunk + b"}\n\n"


def _finish_reason(reason: AnswerFinish | None) -> Literal["stop", "length"]:
    return "length" if reason == "length" else "stop"  # raw text has no calls
