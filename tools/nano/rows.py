"""What the row of every id is made of: its word, its form, and how it is spelled.

Forms of one word share its vector, so a request and a tool have a word in common however it is
written. The vectors of words and pieces are drawn at random and not learnt: all words are alike
to the model, and one that training never met is read and copied like any other. Only the rows
of set phrases and of marks are learnt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from profiles.checkpoints.compact import Makeup
from tools.nano.spelling import MAX_PIECES, is_spaced, pieces, spelled
from tools.nano.tokens import VOCAB_SIZE, text_of
from tools.nano.vocabulary import stem

_BEFORE = " _.@/-"
_WORD = re.compile(r"([ _.@/-]?)([^\W\d_]+)")


def make_makeup(seed: int, phrase_ids: Iterable[int]) -> Makeup:
    """Return what every row is made of; `phrase_ids` are learnt, and written with the pieces."""
    learnt = sorted(phrase_ids)
    written = sorted(pieces().union(learnt))
    index_of = {token_id: index for index, token_id in enumerate(written)}
    numbers: dict[str, int] = {}
    word = np.zeros(VOCAB_SIZE, np.int32)
    form = np.zeros(VOCAB_SIZE, np.int32)
    spelling = np.full((VOCAB_SIZE, MAX_PIECES), -1, np.int32)
    for token_id in range(VOCAB_SIZE):
        key, form[token_id] = _word_and_form(token_id)
        word[token_id] = numbers.setdefault(key, len(numbers))
        found = [index_of[piece] for piece in spelled(token_id)]
        spelling[token_id, : len(found)] = found
    return Makeup(
        seed=seed,
        word=word,
        form=form,
        spelling=spelling,
        written=np.array(written, np.int32),
        learnt=np.array(learnt, np.int32),
    )


def _word_and_form(token_id: int) -> tuple[str, int]:
    text = text_of(token_id)
    if match := _WORD.fullmatch(text):
        before, letters = match.groups()
        kind = 0 if letters.islower() else 1 if letters[1:].islower() else 2
        return stem(letters), 7 * kind + 1 + _BEFORE.find(before) if before else 7 * kind
    if text.isdigit():
        return text, 21
    return text or f"<{token_id}>", 22 + is_spaced(token_id)


def swapped(
    makeup: Makeup, meant: frozenset[str] = frozenset(), said: frozenset[int] = frozenset()
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the words and of the pieces that are to swap their vectors.

    They are all but those of the learnt ids, whose vectors a set phrase is known by. With words
    whose meaning counts, given by their stems, these and the digits keep theirs
    too, and so do the pieces that set answers are written with.
    """
    matches = {i: match for i in range(VOCAB_SIZE) if (match := _WORD.fullmatch(text_of(i)))}
    of_letters = [i for i, match in matches.items() if stem(match[2]) not in meant]
    kept = [i for i, match in matches.items() if stem(match[2]) in meant]
    words = np.setdiff1d(makeup.word[of_letters], makeup.word[[*makeup.learnt, *kept]])
    kept_pieces = said | set(makeup.learnt.tolist())
    held = [
        i for i in makeup.written.tolist() if i in kept_pieces or (meant and text_of(i).isdigit())
    ]
    pieces = np.searchsorted(makeup.written, held)
    return words.astype(np.int64), np.setdiff1d(np.arange(len(makeup.written)), pieces)
