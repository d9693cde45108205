"""Stop strings against the obvious definition: cut the whole text at the first match."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.answer.text import StopStrings
from service.conversation import Delta, DeltaKind
from tests.examples import examples

LETTERS = st.text("ab", max_size=6)


@examples(400)
@given(pieces=st.lists(LETTERS, max_size=8), stops=st.lists(LETTERS.filter(bool), min_size=1))
def test_any_cut_of_the_text_gives_the_text_before_the_first_stop(
    pieces: list[str], stops: list[str]
) -> None:
    finder, shown = StopStrings(stops), ""
    for piece in pieces:
        shown += "".join(d.text for d in finder.feed(Delta(DeltaKind.CONTENT, piece)))
        if finder.is_matched:
            break
    else:
        shown += "".join(delta.text for delta in finder.flush())
    text = "".join(pieces)
    # A match that ends earlier is seen earlier, and ends the answer before a longer one.
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    first_end = min(ends)[0] if ends else None
    starts = [start for end, start in ends if end == first_end]
    assert finder.is_matched == bool(ends)
    assert shown == text or (starts and text.startswith(shown) and len(shown) <= max(starts))


@examples(400)
@given(text=LETTERS, stop=LETTERS.filter(bool))
def test_text_is_held_back_only_while_it_may_begin_the_stop_string(text: str, stop: str) -> None:
    finder = StopStrings([stop])
    shown = "".join(d.text for d in finder.feed(Delta(DeltaKind.CONTENT, text)))
    held = text[len(shown) :]
    assert finder.is_matched or stop.startswith(held)
