"""Long texts whose ids are known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.harmony.vocabulary import encode_text
from service.known_texts import KNOWN_TEXTS, LEAST_CHARS, KnownTexts
from service.work import Budget, OverBudget, in_turns

LONG = "Grüße from the harbour \U0001f469‍\U0001f680. " * 40


@pytest.fixture
def known() -> Iterator[KnownTexts]:
    known = KnownTexts(most_tokens=2000)
    token = KNOWN_TEXTS.set(known)
    yield known
    KNOWN_TEXTS.reset(token)


def test_known_ids_are_those_of_the_text(known: KnownTexts) -> None:
    expected = encode_text(LONG)
    expected.append(0)  # what a caller does with its ids is its own
    assert encode_text(LONG) == expected[:-1]
    assert known.num_found == 1
    encode_text(LONG[: LEAST_CHARS - 1])
    assert known.num_tokens == len(expected) - 1


def test_the_least_recently_used_texts_make_room(known: KnownTexts) -> None:
    texts = [f"{number}: {LONG}" for number in range(8)]
    for text in texts:
        encode_text(texts[0])
        encode_text(text)
    assert 0 < known.num_tokens <= 2000
    found = [known.find(text) is not None for text in texts]
    assert (found[0], found[1], found[-1]) == (True, False, True)


def test_known_ids_count_against_the_budget_of_a_prompt(known: KnownTexts) -> None:
    num_tokens = len(encode_text(LONG))
    in_turns(lambda: encode_text(LONG), Budget(num_tokens, "tokens"))
    with pytest.raises(OverBudget):
        in_turns(lambda: encode_text(LONG), Budget(num_tokens - 1, "tokens"))
