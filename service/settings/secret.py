"""Secrets that two programs share: anyone who records a connection can search for one offline."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from pydantic import SecretStr

REMEDY: Final = "use a random one, such as the output of `openssl rand -base64 32`"
_LEAST_CHARACTERS: Final = 6  # different ones; a random secret of 16 hexadecimal digits has 10
_LEAST_STEPS: Final = 4  # different ones from a character to the next


def checked_secret(value: SecretStr) -> SecretStr:
    """The secret; raises ValueError for one that is easily guessed."""
    text = value.get_secret_value()
    num_characters = len({*text})
    if num_characters < _LEAST_CHARACTERS:
        raise ValueError(f"it has only {num_characters} different characters; {REMEDY}")
    if text in (text + text)[1:-1]:
        raise ValueError(f"it repeats a shorter text; {REMEDY}")
    if len({ord(after) - ord(before) for before, after in pairwise(text)}) < _LEAST_STEPS:
        raise ValueError(f"its characters follow a simple order; {REMEDY}")
    return value
