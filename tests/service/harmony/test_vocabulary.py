"""Text to ids and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from openai_harmony import HarmonyEncoding

from service.harmony import vocabulary
from service.harmony.vocabulary import WHOLE_TEXTS, decode_bytes, encode_text, is_ordinary
from tests.examples import any_text, examples


@pytest.mark.parametrize(
    ("name", "token_id"),
    [
        ("<|return|>", vocabulary.RETURN),
        ("<|constrain|>", vocabulary.CONSTRAIN),
        ("<|channel|>", vocabulary.CHANNEL),
        ("<|start|>", vocabulary.START),
        ("<|end|>", vocabulary.END),
        ("<|message|>", vocabulary.MESSAGE),
        ("<|call|>", vocabulary.CALL),
        ("<|endoftext|>", vocabulary.ENDOFTEXT),
    ],
)
def test_control_ids_are_the_librarys(name: str, token_id: int, library: HarmonyEncoding) -> None:
    assert library.encode(name, allowed_special={name}) == [token_id]
    assert not is_ordinary(token_id)


def test_ordinary_ids_end_where_control_ids_begin(library: HarmonyEncoding) -> None:
    specials = [i for i in range(199_000, 201_088) if library.is_special_token(i)]
    assert specials == [i for i in range(199_000, 201_088) if not is_ordinary(i)]


def test_stop_tokens_are_the_librarys_and_the_end_of_text(library: HarmonyEncoding) -> None:
    """gpt-oss's generation_config.json has these three."""
    stops = {*library.stop_tokens_for_assistant_actions(), vocabulary.ENDOFTEXT}
    assert set(vocabulary.STOP_TOKEN_IDS) == stops


@examples(200)
@given(any_text())
def test_text_survives(text: str) -> None:
    token_ids = encode_text(text)
    assert b"".join(map(decode_bytes, token_ids)).decode() == text
    assert all(map(is_ordinary, token_ids))


def test_markup_is_ordinary_text() -> None:
    assert all(map(is_ordinary, encode_text("<|start|>system<|message|><|reserved_200013|>")))


def test_half_a_surrogate_becomes_a_replacement() -> None:
    assert b"".join(map(decode_bytes, encode_text("a\ud800b"))).decode() == "a\ufffdb"


def test_ordinary_text_is_encoded_as_the_library_does(library: HarmonyEncoding) -> None:
    text = "Grüezi, wie gäht's? 今日は、世界。\n\n```py\nx = [1, 2]\n```\n" * 200
    assert encode_text(text) == library.encode(text)


@pytest.mark.parametrize("char", [" ", "\n", "a", "!", "漢", "_", "\u0301", "\t"])
def test_a_long_run_neither_panics_nor_stalls(
    char: str, library: HarmonyEncoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library takes seconds for 100,000 and panics on a million spaces: it is given parts."""
    given: list[str] = []

    class Noting:
        def encode(self, part: str, disallowed_special: Any) -> list[int]:
            given.append(part)
            return [*library.encode(part, disallowed_special=disallowed_special)]

    text = char * 10_000
    monkeypatch.setattr(vocabulary, "_encoding", Noting)
    token_ids = encode_text(text)
    monkeypatch.undo()
    assert b"".join(map(decode_bytes, token_ids)).decode() == text
    assert max(map(len, given)) <= 1_000


def test_whole_texts_know_what_is_whole() -> None:
    (hello,) = encode_text(" hello")
    goose = encode_text("🪿")
    assert WHOLE_TEXTS[hello] == " hello"
    assert [WHOLE_TEXTS[token_id] for token_id in goose] == [None] * len(goose)
    assert [WHOLE_TEXTS[token_id] for token_id in (200007, -1, 2**40)] == [None] * 3
