"""What a guest gives of one request, as events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from engines.base import EngineRequest, FinishReason, TokenEvent, TokenLogprob
from engines.errors import RequestFailed
from engines.prompt_logprobs import PromptToken, as_extras, pack

_FINISH: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
# Of a token that is none of the likeliest that were asked for: OpenAI's word for it.
UNLIKELY: Final = -9999.0


class Outputs:
    """Makes the events of one request; what is the same on each is as the first had it."""

    def __init__(self, library: str, request: EngineRequest) -> None:
        self._library = library
        self._stops = request.stop_token_ids
        self._prompt = request.prompt_token_ids
        self._num_logprobs = request.sampling.logprobs
        self._num_prompt_logprobs = request.sampling.prompt_logprobs
        self._first: TokenEvent | None = None

    def event_of(
        self,
        token_ids: Sequence[int],
        reason: str | None,
        logprobs: Sequence[Mapping[int, Any]] | None,
        num_cached: int,
        queued_s: float,
        prompt_logprobs: Sequence[Mapping[int, Any] | None] | None = None,
    ) -> TokenEvent | None:
        """Make the next event, None for nothing; raises RequestFailed for an end that is none.

        `logprobs`: for each of `token_ids` the likeliest tokens by their ids, as objects with a
        `logprob` (natural) and a `rank` (1 is the likeliest). `queued_s`: from the request's
        arrival to its first step. `prompt_logprobs`: the same for each token of the prompt, None
        for the first; read with the first event.
        """
        finish_reason = self._finish_reason(reason, token_ids)
        if not token_ids and finish_reason is None:
            return None
        if self._first is not None:
            num_cached, queued_s = self._first.num_cached_tokens, self._first.queued_s
        event = TokenEvent(
            tuple(token_ids),
            self._logprobs(token_ids, logprobs),
            finish_reason,
            min(num_cached, len(self._prompt)),
            max(0.0, queued_s),
            None if self._first is not None else self._extras(prompt_logprobs or ()),
        )
        self._first = self._first or event
        return event

    def _finish_reason(self, reason: str | None, token_ids: Sequence[int]) -> FinishReason | None:
        if reason is None:
            return None
        if reason not in _FINISH:
            raise RequestFailed(f"{self._library} ended the request: {reason}")
        if reason == "stop" and token_ids and token_ids[-1] not in self._stops:
            raise RequestFailed("the grammar reached a state in which no token is allowed")
        return _FINISH[reason]

    def _extras(self, given: Sequence[Mapping[int, Any] | None]) -> Mapping[str, Any] | None:
        num_top = self._num_prompt_logprobs
        if num_top is None:
            return None
        tokens = (
            _prompt_token(token_id, entries or {}, num_top)
            for token_id, entries in zip(self._prompt[1:], given[1:], strict=True)
        )
        return as_extras([pack(tokens, num_top)])

    def _logprobs(
        self, token_ids: Sequence[int], logprobs: Sequence[Mapping[int, Any]] | None
    ) -> tuple[TokenLogprob, ...] | None:
        num_top = self._num_logprobs
        if num_top is None:
            return None
        return tuple(
            _logprob(token_id, entries, num_top)
            for token_id, entries in zip(token_ids, logprobs or (), strict=True)
        )


def _prompt_token(token_id: int, entries: Mapping[int, Any], num_top: int) -> PromptToken:
    scored = _logprob(token_id, entries, num_top)
    return PromptToken(token_id, scored.logprob, entries[token_id].rank or 0, scored.top)


def _logprob(token_id: int, entries: Mapping[int, Any], num_top: int) -> TokenLogprob:
    rivals = sorted(entries.items(), key=lambda entry: (-entry[1].logprob, entry[1].rank or 0))
    top = tuple((rival, entry.logprob) for rival, entry in rivals[:num_top])
    chosen = entries[token_id].logprob if token_id in entries else UNLIKELY
    return TokenLogprob(token_id, chosen, top)
