"""Long texts are encoded piece by piece: the same ids, and nobody waits for all of another's."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_harmony import HarmonyEncoding

from service.harmony import vocabulary
from service.harmony.vocabulary import (
    LONGEST_TOKEN_CHARS,
    MOST_CHARS,
    NUM_ORDINARY,
    PIECE_CHARS,
    decode_bytes,
    encode_in_pieces,
    encode_text,
    pieces,
)
from service.work import Budget, OverBudget, in_turns
from tests.examples import any_text, examples

WORDS = [
    "word",
    "Don't",
    "x'",
    "'s",
    "3",
    "1234567",
    ".",
    "/",
    "漢字",
    "、",
    "かな",
    "한국",
    "é",
    "́",
    "ǅ",
    "_",
    "=[",
    "🪿",
    "<|end|>",
]
PARTS = st.sampled_from([*WORDS, " ", "  ", "\t", "\n", "\r\n", "!?\n/", "e\u0301"])


@examples(200)
@given(st.lists(PARTS | any_text(3), min_size=4).map("".join), st.integers(1, 8))
def test_a_cut_changes_no_ids(library: HarmonyEncoding, text: str, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "PIECE_CHARS", size)
        assert "".join(pieces(text)) == text
        assert encode_text(text) == library.encode(text, disallowed_special=())


def test_texts_as_people_write_them_are_cut_small(library: HarmonyEncoding) -> None:
    for line in ("The quick brown fox. ", "今日は、世界。", '{"a":[1,2],"b":"c"},', "x = f(y)\n"):
        text = line * 3000
        sizes = [len(piece) for piece in pieces(text)]
        assert max(sizes) < PIECE_CHARS + 100
        assert in_turns(partial(encode_text, text)) == library.encode(text)


def test_two_long_texts_take_turns() -> None:
    order: list[str] = []
    together = threading.Barrier(2)

    def encode(piece: str) -> list[int]:
        order.append(piece.strip()[0])
        return [sum(range(100_000))]  # which takes longer than a turn

    def run(letter: str) -> None:
        together.wait(60)
        in_turns(partial(encode_in_pieces, f"{letter} " * PIECE_CHARS * 20, encode))

    threads = [threading.Thread(target=run, args=[letter]) for letter in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {"a", "b"} == set(order)
    assert order != sorted(order)
    assert order != sorted(order, reverse=True)


@pytest.mark.parametrize("letter", ["a", " ", "\n", "漢", "-"])
def test_a_text_that_cannot_be_cut_is_cut_all_the_same(letter: str) -> None:
    text = letter * 3 * MOST_CHARS
    sizes = [len(piece) for piece in pieces(text)]
    assert sum(sizes) == len(text)
    assert max(sizes) <= MOST_CHARS


def test_a_text_beyond_the_tokens_it_may_have_is_not_encoded_to_its_end() -> None:
    encoded: list[str] = []

    def encode(piece: str) -> list[int]:
        encoded.append(piece)
        return [0] * len(piece)

    with pytest.raises(OverBudget, match="20000"):
        in_turns(partial(encode_in_pieces, "word " * 100_000, encode), Budget(20_000, "tokens"))
    assert sum(map(len, encoded)) < 20_000 + MOST_CHARS


def test_no_token_is_longer_than_is_said() -> None:
    sizes = [len(decode_bytes(token_id)) for token_id in range(NUM_ORDINARY)]
    assert max(sizes) == LONGEST_TOKEN_CHARS
