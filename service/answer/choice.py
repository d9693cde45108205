"""One choice of an answer while it is written: ids in, deltas out, with its counts.

A choice with built-in tools is made in rounds, each a generation of the engine. A call ends a
round; its result joins the prompt behind what the model wrote, token for token, so that the next
round finds its prefix cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Literal

import msgspec

from engines.base import FinishReason, TokenEvent, TokenLogprob
from engines.prompt_logprobs import PromptLogprobs, packed_in
from service.answer.hosted import HostedCalls
from service.answer.latencies import InterTokenLatencies
from service.answer.logprobs import KeptLogprobs
from service.answer.plan import Plan
from service.answer.text import RawText, StopStrings
from service.chat_format import AnswerParser
from service.conversation import CALL_KINDS, Delta, DeltaKind
from service.work import rest

AnswerFinish = Literal["stop", "length", "tool_calls"]
_AT_ONCE = 512  # tokens between two rests of a long beginning
_HOSTED = (DeltaKind.HOSTED_CALL, DeltaKind.HOSTED_END)


class ChoiceStep(msgspec.Struct, frozen=True, gc=False):
    """What one engine event added to one choice; no dataclass, which is slower to make."""

    index: int
    deltas: Sequence[Delta]
    finish_reason: AnswerFinish | None = None


class Choice:
    """One of a request's answers: parses what the model writes and decides where it ends."""

    def __init__(self, plan: Plan, index: int) -> None:
        self.index = index
        self.format = plan.format
        self.tool_types = plan.tool_types or {}
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.queued_s = 0.0  # in the engine
        self.latencies = InterTokenLatencies()
        self.is_timed = False  # whether parse_s is wanted
        self.parse_s = 0.0  # spent on what the model wrote
        self.transcript: list[int] | None = None  # its ids, where they are wanted
        self.round_ids: list[int] = []  # of them, since the last result, where rounds may follow
        self.has_rounds = plan.hosted is not None
        self._has_continued = False  # in a second run of the engine
        self.finish_reason: AnswerFinish | None = None
        self.logprobs = KeptLogprobs()  # one per generated token, when asked for
        self.prompt_logprobs: tuple[PromptLogprobs, ...] = ()  # when asked for
        self._parser = _parser_of(plan)
        self._stops = StopStrings(plan.stop, are_shown=plan.shows_stop) if plan.stop else None
        self._stop_id: int | None = None  # the client's token that ended it
        stop_ids = frozenset(plan.stop_token_ids)
        self._further_stop_ids = stop_ids.difference(self.format.stop_token_ids)
        self._max_calls = plan.max_calls
        self._has_logprobs = plan.sampling.logprobs is not None
        self._num_begun_reasoning = 0
        self._is_resumed = plan.is_resumed
        self._has_reasoning = plan.has_reasoning
        self._has_tools = bool(plan.tool_names or plan.builtins.returns_others)
        self._has_call = False
        self._is_cut = False  # ended here, before the engine ended it
        self.hosted = HostedCalls(plan.hosted) if plan.hosted else None
        self._can_be_cut = (
            self._stops is not None or plan.max_calls is not None or self.hosted is not None
        )

    @property
    def num_reasoning_tokens(self) -> int:
        return self._parser.num_reasoning_tokens - self._num_begun_reasoning

    @property
    def kept_ids(self) -> list[int]:
        """The ids of the model's text that count; needs a transcript."""
        assert self.transcript is not None
        return self.transcript[: self.num_tokens]

    @property
    def is_reasoning(self) -> bool:
        return bool(self._parser.is_reasoning)

    @property
    def may_reason(self) -> bool:
        """Whether it reasons, or may begin to."""
        is_past = self._parser.is_reasoning is False and not self.is_calling
        return self.finish_reason is None and not is_past

    @property
    def num_resyncs(self) -> int:
        """Malformed message headers repaired by the parser."""
        return self._parser.num_resyncs

    def forget_logprobs(self, step: ChoiceStep) -> None:
        """Free the log-probabilities that a step has shown; later steps show those of later tokens.

        The last one stays: two deltas may share the token between them.
        """
        shown = [delta.positions[-1] for delta in step.deltas if delta.positions]
        if shown:
            self.logprobs.forget(max(shown))

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._stops.matched if self._stops else None

    @property
    def stop_reason(self) -> str | int | None:
        """What of the client's ended the answer, as vLLM says it: a string, or a token."""
        return self._stop_id if self._stop_id is not None else self.stop_string

    def begin(self, token_ids: Sequence[int]) -> ChoiceStep | None:
        """Take the beginning that the client gave; call it in a thread, because it may be long."""
        if self._has_logprobs:
            self.logprobs.begin(len(token_ids))
        if self.transcript is not None:
            self.transcript += token_ids
        deltas: list[Delta] = []
        for start in range(0, len(token_ids), _AT_ONCE):
            deltas += self._feed(TokenEvent(tuple(token_ids[start : start + _AT_ONCE])))
            rest()
        if not self._is_resumed:
            self._num_begun_reasoning = self._parser.num_reasoning_tokens
        return self._step(coalesced(deltas), None)

    def advance(self, event: TokenEvent) -> ChoiceStep | None:
        """Take one event of the engine; None when it adds nothing that is shown."""
        if not self._has_continued:  # later runs find what they wrote
            self.num_cached_tokens = event.num_cached_tokens
        self.queued_s = event.queued_s
        self.latencies.note(len(event.token_ids))
        if event.extras:
            self.prompt_logprobs = packed_in(event) or ()
        if event.logprobs:
            self.logprobs.extend(event.logprobs)
        if self.transcript is not None:
            self.transcript += event.token_ids
        deltas = self._feed(event)
        if self.is_timed:
            self.parse_s += perf_counter() - self.latencies.last_at
        return self._step(deltas, event.finish_reason)

    def _step(self, deltas: list[Delta], reason: FinishReason | None) -> ChoiceStep | None:
        if self._has_tools and not self._has_call:
            for delta in deltas:  # a generator would cost more than all of the loop
                self._has_call = self._has_call or delta.kind in CALL_KINDS
        is_over = reason is not None and not self.is_calling
        if self._is_cut or is_over:
            self.finish_reason = self._finish(reason)
        if not self._has_reasoning:
            deltas = [delta for delta in deltas if delta.kind is not DeltaKind.REASONING]
        if not deltas and self.finish_reason is None:
            return None
        return ChoiceStep(self.index, deltas, self.finish_reason)

    @property
    def is_calling(self) -> bool:
        """Whether a built-in tool's result must come before the model can continue."""
        return self.hosted is not None and self.hosted.is_whole

    def resume(self, deltas: Sequence[Delta], num_result_tokens: int) -> ChoiceStep:
        """Start another round, now that a tool's result has joined the prompt."""
        assert self.hosted is not None
        self.hosted.num_result_tokens += num_result_tokens
        self.round_ids.clear()
        self._has_continued = True
        assert not isinstance(self._parser, RawText)
        self._parser.resume()
        self.latencies.last_at = perf_counter()  # the tool's time is none between tokens
        return ChoiceStep(self.index, deltas)

    def force(self, token_ids: Sequence[int]) -> ChoiceStep | None:
        """Take ids that are certain to follow; another run continues behind them."""
        if self._has_logprobs:
            self.logprobs.extend(TokenLogprob(token_id, 0.0) for token_id in token_ids)
        if self.transcript is not None:
            self.transcript += token_ids
        self._has_continued = True
        return self._step(self._feed(TokenEvent(tuple(token_ids))), None)

    def end(self) -> ChoiceStep:
        """End the answer where the limits leave no room for another round."""
        self.finish_reason = "length"
        return ChoiceStep(self.index, (), self.finish_reason)

    def _feed(self, event: TokenEvent) -> list[Delta]:
        if self._can_be_cut:
            return self._feed_one_by_one(event)
        self.num_tokens += len(event.token_ids)
        if self.has_rounds:
            self.round_ids += event.token_ids
        deltas = self._parser.feed(self._shown_of(event))
        return deltas if event.finish_reason is None else deltas + self._parser.finish()

    def _feed_one_by_one(self, event: TokenEvent) -> list[Delta]:
        """Tokens behind the cut must not count, however many one event brings."""
        kept: list[Delta] = []
        shown = self._shown_of(event)
        for token_id in shown:
            self.num_tokens += 1
            if self.has_rounds:
                self.round_ids.append(token_id)
            kept += self._cut(self._parser.feed((token_id,)))
            if self._is_cut or self.is_calling:
                self.logprobs.cut(self.num_tokens)
                return kept
        self.num_tokens += len(event.token_ids) - len(shown)
        if event.finish_reason is not None:
            kept += self._cut(self._parser.finish())
            if self._stops and not self._is_cut:
                kept += self._stops.flush()
            kept += self.hosted.cut() if self.hosted else []
        return kept

    def _shown_of(self, event: TokenEvent) -> tuple[int, ...]:
        """The event's tokens without the client's own stop token, which is not text."""
        if event.finish_reason is FinishReason.STOP and event.token_ids:
            last = event.token_ids[-1]
            if last in self._further_stop_ids:
                self._stop_id = last
                return event.token_ids[:-1]
        return event.token_ids

    def _cut(self, deltas: Sequence[Delta]) -> list[Delta]:
        """The deltas up to the first stop string or the first call too many."""
        kept: list[Delta] = []
        for delta in deltas:
            if self._max_calls is not None and delta.call_index >= self._max_calls:
                self._is_cut = True
                return kept + (self._stops.flush() if self._stops else [])
            if self.hosted and delta.kind in _HOSTED:
                kept += self._stops.flush() if self._stops else []
                kept += self.hosted.take(delta)
                continue
            if self._stops is None or delta.kind is not DeltaKind.CONTENT:
                kept.append(delta)
                continue
            kept += self._stops.feed(delta)
            if self._stops.is_matched:
                self._is_cut = True
                return kept
        return kept

    def _finish(self, reason: FinishReason | None) -> AnswerFinish:
        if reason is FinishReason.LENGTH and not self._is_cut:
            return "length"
        return "tool_calls" if self._has_call else "stop"


def _parser_of(plan: Plan) -> AnswerParser | RawText:
    if plan.output == "chat":
        return plan.format.parser(
            plan.tool_names,
            plan.builtins,
            plan.custom_names,
            is_endless=not set(plan.format.stop_token_ids).intersection(plan.stop_token_ids),
        )
    return RawText(plan.format, plan.stop_token_ids, has_marks=plan.output == "marked")


def coalesced(deltas: Sequence[Delta]) -> list[Delta]:
    """The deltas with neighbours of one kind joined: fewer events, the same text."""
    merged: list[Delta] = []
    for delta in deltas:
        last = merged[-1] if merged else None
        if (
            last is None
            or last.kind is not delta.kind
            or last.call_index != delta.call_index
            or delta.kind in CALL_KINDS
        ):
            merged.append(delta)
            continue
        merged[-1] = Delta(
            kind=last.kind,
            text=last.text + delta.text,
            call_index=last.call_index,
            positions=last.positions + delta.positions,
        )
    return merged
