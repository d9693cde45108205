"""How nano copies: every id it reads is written with a few pieces, with no space in front.

The vocabulary cuts a word otherwise after a quote than after a space: ' Warsaw' is one id and
'Warsaw' is 'Wars', 'aw'. nano reads all ids but writes copies with about a tenth of them, and
a space between words with an id of its own. How an id is spelled is a part of its row
(tools/nano/rows.py), so a word never met is copied like any other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from profiles.checkpoints.compact import PIECE_SHARES
from tools.nano.tokens import NUM_ORDINARY, SPACE, encode, text_of

MAX_PIECES = len(PIECE_SHARES)
# Ids grow with rarity, so a bound on the id is a bound on rarity.
_NUM_COMMON_IDS = 16_000
_LEAST_USES = 2
_LATIN_WORD = re.compile(r"[ _.@/-]?[A-Za-zÀ-ɏ]+")


class UnspellableError(ValueError):
    """A text holds an id that three pieces do not write."""


@cache
def pieces() -> frozenset[int]:
    """Return the ids that copies are written with.

    They are the common ids with no space in front, what the vocabulary cuts at least two Latin
    words into where they stand after no space, and what else it takes to write a Latin word.
    """
    texts = (text_of(i) for i in range(NUM_ORDINARY))
    words = (text.removeprefix(" ") for text in texts if _LATIN_WORD.fullmatch(text))
    cuts = {word: encode(word) for word in words}
    uses = Counter(piece for cut in cuts.values() if len(cut) > 1 for piece in cut)
    found = {i for i in range(_NUM_COMMON_IDS) if not is_spaced(i)}
    found.update(i for i, count in uses.items() if count >= _LEAST_USES)
    by_text = _by_text(found)
    for word, cut in cuts.items():
        if len(cut) <= MAX_PIECES and not _fewest(word, MAX_PIECES, by_text):
            found.update(cut)
    return frozenset(found)


def is_spaced(token_id: int) -> bool:
    """Say whether an id is something with a space in front."""
    text = text_of(token_id)
    return len(text) > 1 and text[0] == " " and not text[1].isspace()


@cache
def spelled(token_id: int) -> tuple[int, ...]:
    """Return the pieces that write an id without its space, empty where three do not do."""
    if token_id in pieces():
        return (token_id,)
    text = text_of(token_id)
    return _fewest(text[1:] if is_spaced(token_id) else text, MAX_PIECES, _pieces_by_text())


def _fewest(text: str, most: int, by_text: Mapping[str, int]) -> tuple[int, ...]:
    """Cut a text into as few pieces as can be, the first as long as can be."""
    if text in by_text:
        return (by_text[text],)
    for num_rest in range(1, most):
        for end in range(len(text) - 1, 0, -1):
            if text[:end] in by_text and (rest := _fewest(text[end:], num_rest, by_text)):
                return (by_text[text[:end]], *rest)
    return ()


@cache
def _pieces_by_text() -> Mapping[str, int]:
    return _by_text(pieces())


def _by_text(token_ids: Iterable[int]) -> Mapping[str, int]:
    return {text_of(i): i for i in sorted(token_ids, reverse=True) if text_of(i)}


def copy_of(token_ids: Sequence[int]) -> list[int]:
    """Return the ids that write what others say, without a space in front.

    Raises UnspellableError.
    """
    copy: list[int] = []
    for index, token_id in enumerate(token_ids):
        if index and is_spaced(token_id):
            copy.append(SPACE)
        if not (spelling := spelled(token_id)):
            raise UnspellableError(f"{text_of(token_id)!r} (id {token_id}) cannot be spelled")
        copy += spelling
    return copy


def is_copyable(text: str) -> bool:
    """Say whether a text can be copied, wherever it stands."""
    return all(spelled(i) for i in (*encode(" " + text), *encode(text)))


def copied(value: str, said: str) -> list[int]:
    """Return the ids that copy a value from a text that holds it, as the text is cut there."""
    at = said.find(value)
    cuts = {0: 0}  # place in the text -> number of ids before it
    place = 0
    ids = encode(said)
    for number, token_id in enumerate(ids, 1):
        place += len(text_of(token_id))
        cuts[place] = number
    first = cuts.get(at, cuts.get(at - 1) if said[at - 1 : at] == " " else None)
    last = cuts.get(at + len(value))
    is_aligned = place == len(said) and first is not None and last is not None
    if is_aligned and all(spelled(i) for i in ids[first:last]):
        return copy_of(ids[first:last])
    return copy_of(encode(value))
