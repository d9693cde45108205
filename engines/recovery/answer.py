"""What of an answer has been shown, whichever runs it took."""

from __future__ import annotations

from dataclasses import replace

from engines.base import EngineRequest, TokenEvent


class Answer:
    """Collects the tokens of one request; what is left of it is a request of its own."""

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self._token_ids = list(request.generated_token_ids)
        self._first: TokenEvent | None = None  # of the first run that showed anything
        self._is_continued = False

    @property
    def num_tokens(self) -> int:
        """Shown so far."""
        return len(self._token_ids)

    def rest(self) -> EngineRequest:
        """What another run is to do."""
        if not self._token_ids:
            return self.request
        self._is_continued = True
        return replace(self.request, generated_token_ids=tuple(self._token_ids))

    def take(self, event: TokenEvent) -> TokenEvent:
        """The event as the first run would have given it."""
        self._token_ids += event.token_ids
        first = self._first = self._first or event
        if not self._is_continued:
            return event
        return replace(event, num_cached_tokens=first.num_cached_tokens, queued_s=first.queued_s)
