"""What holds for any output at all, however wild."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.conversation import Conversation, Delta, DeltaKind, Message, ToolCall
from service.harmony.parse import Parser
from service.harmony.render import render
from service.harmony.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    ENDOFTEXT,
    MESSAGE,
    RETURN,
    START,
    decode_bytes,
    encode_text,
    is_ordinary,
)
from tests.examples import examples

NAMES = frozenset({"f", "get_weather"})
WORDS = (
    "assistant",
    "analysis",
    "commentary",
    "final",
    "json",
    " to=",
    " to=functions.f",
    " to=functions.get_weather",
    " to=functions.unknown",
    "functions.f",
    " to=assistant",
    "user",
    '{"a": 1}',
    "Hello there",
    "I'm sorry, but I can't",
    "\n",
    "🪿",
    "é漢",
    "?",
)

controls = st.sampled_from((START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL)).map(lambda i: [i])
rare_controls = st.sampled_from((RETURN, ENDOFTEXT, 200013, 201087, 201088, -1)).map(lambda i: [i])
ordinary = st.integers(0, 199_997).filter(lambda i: b"<|" not in decode_bytes(i)).map(lambda i: [i])
half_characters = st.sampled_from(encode_text("🪿") + encode_text("🫠")).map(lambda i: [i])
words = st.sampled_from(WORDS).map(encode_text)
outputs = st.lists(
    st.one_of(controls, controls, words, words, ordinary, half_characters, rare_controls),
    max_size=40,
).map(lambda pieces: [token_id for piece in pieces for token_id in piece])


def parse(chunks: Iterable[list[int]]) -> tuple[Parser, list[Delta]]:
    parser, deltas = Parser(NAMES), []
    for chunk in chunks:
        deltas += parser.feed(chunk)
    return parser, deltas + parser.finish()


def joined(deltas: list[Delta]) -> dict[Any, tuple[str, tuple[int, ...]]]:
    """The text and the positions of each channel and call."""
    texts: dict[Any, tuple[str, tuple[int, ...]]] = {}
    for delta in deltas:
        key = (delta.kind, delta.call_index, delta.name)
        text, positions = texts.get(key, ("", ()))
        texts[key] = text + delta.text, positions + delta.positions
    return texts


@examples(300)
@given(outputs, st.lists(st.integers(0, 9), max_size=60))
def test_any_split_gives_the_same_answer(output: list[int], sizes: list[int]) -> None:
    chunks, start = [], 0
    for size in sizes:
        chunks.append(output[start : start + size])
        start += size
    split = parse([*chunks, output[start:]])
    for other in (parse([output]), parse([i] for i in output)):
        assert joined(other[1]) == joined(split[1])
        assert other[0].num_resyncs == split[0].num_resyncs
        assert other[0].num_reasoning_tokens == split[0].num_reasoning_tokens


@examples(300)
@given(outputs)
def test_no_markup_and_only_offered_names(output: list[int]) -> None:
    _, deltas = parse([output])
    assert not any("<|" in delta.text or "|>" in delta.text for delta in deltas)
    calls = [delta for delta in deltas if delta.kind is DeltaKind.TOOL_CALL]
    assert {delta.name for delta in calls} <= NAMES
    assert [delta.call_index for delta in calls] == list(range(len(calls)))


@examples(300)
@given(outputs)
def test_each_token_is_in_one_delta_at_most_and_in_order(output: list[int]) -> None:
    _, deltas = parse([i] for i in output)
    positions = [position for delta in deltas for position in delta.positions]
    assert positions == sorted(set(positions))
    assert all(is_ordinary(output[position]) for position in positions)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<|>"), min_size=1)
headers = st.sampled_from(
    (
        "<analysis>",
        "<commentary>",
        "<final>",
        "<commentary to=functions.f >",
        "<>",
        "<junk>",
        "<analysis to=python code>",
    )
)


def _message(header: str, text: str, end: int) -> list[int]:
    name = encode_text(header.strip("<>"))
    return [START, *encode_text("assistant"), CHANNEL, *name, MESSAGE, *encode_text(text), end]


@examples(200)
@given(st.lists(st.tuples(headers, texts, st.sampled_from((END, CALL))), max_size=5))
def test_all_text_of_all_messages_comes_out(messages: list[tuple[str, str, int]]) -> None:
    output = [i for message in messages for i in _message(*message)]
    _, deltas = parse([output])
    found = "".join(delta.text for delta in deltas)
    for _, text, _ in messages:
        assert text in found
    carried = {p for delta in deltas for p in delta.positions}
    assert len(carried) == sum(len(encode_text(text)) for _, text, _ in messages)


@examples(200)
@given(texts.filter(lambda text: len(text.split()) > 1))
def test_text_without_any_header_is_content(text: str) -> None:
    _, deltas = parse([[*encode_text("Well, " + text), RETURN]])
    assert {delta.kind for delta in deltas} == {DeltaKind.CONTENT}
    assert "".join(delta.text for delta in deltas) == "Well, " + text


@pytest.mark.parametrize("end", [RETURN, END, CALL, None])
def test_an_answer_with_any_text_is_never_empty(
    end: int | None, encode: Callable[[str], list[int]]
) -> None:
    for header in ("", "<|channel|>", "<|channel|><|message|>", "<|channel|>commentary to=x "):
        output = encode(header + "some words here")
        _, deltas = parse([[*output, *([] if end is None else [end])]])
        assert "some words here" in "".join(delta.text for delta in deltas)


@examples(100)
@given(texts, texts, st.lists(st.tuples(st.sampled_from(sorted(NAMES)), texts), min_size=1))
def test_a_rendered_turn_is_read_back(
    reasoning: str, preamble: str, calls: list[tuple[str, str]]
) -> None:
    tool_calls = tuple(ToolCall(str(i), *call) for i, call in enumerate(calls))
    turn = Message("assistant", preamble, reasoning, tool_calls)
    prompt = render(Conversation((), "2026-01-31"))
    whole = render(Conversation((turn,), "2026-01-31"))
    parser, deltas = parse([whole[len(prompt) : -2]])
    assert "".join(d.text for d in deltas if d.kind is DeltaKind.REASONING) == reasoning
    assert "".join(d.text for d in deltas if d.kind is DeltaKind.CONTENT) == preamble
    assert [d.name for d in deltas if d.kind is DeltaKind.TOOL_CALL] == [n for n, _ in calls]
    for index, (_, arguments) in enumerate(calls):
        pieces = [d for d in deltas if d.kind is DeltaKind.ARGUMENTS and d.call_index == index]
        read = "".join(piece.text for piece in pieces)
        assert read == (arguments if arguments.strip() else arguments + "{}")
    assert parser.num_resyncs == 0
