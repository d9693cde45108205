"""What the backend's head guessed of a sequence's next tokens, and how often it was right."""

from __future__ import annotations

from typing import Final

_FIRST_RATE: Final = 0.5
_WEIGHT: Final = 0.15  # of the last guess in the rate


class Proposals:
    """The latest drafts of a growing text, compared with what came, verified or not."""

    __slots__ = ("_at", "_token_ids", "asked_at", "guesses", "rate")

    def __init__(self, token_ids: list[int]) -> None:
        """`token_ids` is kept: catch_up() takes in what was appended."""
        self._token_ids = token_ids
        self.rate = _FIRST_RATE  # of right drafts, the latest ones counting most
        self.guesses: tuple[int, ...] = ()  # of the tokens that are not known yet
        self._at = 0  # the place in the text of the first of them
        self.asked_at = -1_000  # length of the text when drafts were last asked for

    def bring(self, guesses: tuple[int, ...]) -> None:
        """Take the drafts of the tokens after the known ones."""
        self.catch_up()
        self.guesses, self._at = guesses, len(self._token_ids)

    def catch_up(self) -> None:
        """Compare the drafts with the new tokens; after a wrong one none counts."""
        while self.guesses and self._at < len(self._token_ids):
            is_right = self.guesses[0] == self._token_ids[self._at]
            self.rate += _WEIGHT * (is_right - self.rate)
            self.guesses = self.guesses[1:] if is_right else ()
            self._at += 1
