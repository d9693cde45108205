"""The vocabulary as the recipe uses it: text to ids, ids to text, and the special ids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

import openai_harmony as harmony

START, END, MESSAGE, CHANNEL = 200006, 200007, 200008, 200005
CALL, RETURN = 200012, 200002
ASSISTANT = 173781
SPACE = 220
NUM_ORDINARY = 199_998  # ids below spell text
VOCAB_SIZE = 201_088


@cache
def _encoding() -> harmony.HarmonyEncoding:
    return harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


def encode(text: str) -> list[int]:
    """Encode ordinary text; markup in it stays text."""
    return list(_encode(text))


@lru_cache(maxsize=50_000)
def _encode(text: str) -> tuple[int, ...]:
    return tuple(_encoding().encode(text, disallowed_special=()))


def decode(token_ids: Sequence[int]) -> str:
    """Decode ids; bytes that are no UTF-8 are replaced."""
    return str(_encoding().decode(token_ids))


@cache
def text_of(token_id: int) -> str:
    """Return the text of one ordinary id, or an empty one where it is a part of a character."""
    text = decode([token_id]) if token_id < NUM_ORDINARY else ""
    return "" if "\ufffd" in text else text
