"""Well-formed output, and how deltas carry it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.conversation import Conversation, Delta, DeltaKind, Message, ToolCall
from service.harmony.parse import Parser
from service.harmony.render import render

GOLDEN = Path(__file__).parents[2] / "golden" / "harmony_prompts.json"
STEPS = pytest.mark.parametrize("step", [1, 3, 8, None])
TOOL_TURN = (
    "<|channel|>analysis<|message|>Need the tool.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
    "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>"
    '{"city": "Zürich 🏔"}<|call|>'
)


@STEPS
def test_reasoning_preamble_and_call(
    step: int | None, encode: Callable[[str], list[int]], answer: Callable[..., Any]
) -> None:
    found = answer(encode(TOOL_TURN), step)
    assert found.reasoning == "Need the tool."
    assert found.content == "Let me look."
    assert found.calls == [("f", '{"city": "Zürich 🏔"}')]
    assert found.num_reasoning_tokens == len(encode("Need the tool."))


def test_one_feed_merges_text_of_one_kind(
    encode: Callable[[str], list[int]], deltas: Callable[..., Any]
) -> None:
    _, found = deltas(encode(TOOL_TURN))
    kinds = [delta.kind for delta in found]
    assert kinds == [
        DeltaKind.REASONING,
        DeltaKind.CONTENT,
        DeltaKind.TOOL_CALL,
        DeltaKind.ARGUMENTS,
    ]


def test_text_is_streamed_as_it_comes(encode: Callable[[str], list[int]]) -> None:
    parser = Parser(frozenset())
    parser.feed(encode("<|channel|>final<|message|>"))
    for word in encode("one two three"):
        assert [delta.kind for delta in parser.feed([word])] == [DeltaKind.CONTENT]


def test_refusal_without_a_header_is_streamed_too(encode: Callable[[str], list[int]]) -> None:
    parser = Parser(frozenset())
    parser.feed(encode("I cannot"))
    assert [delta.text for delta in parser.feed(encode(" help"))] == [" help"]


def test_name_comes_once_and_before_its_arguments(
    encode: Callable[[str], list[int]], deltas: Callable[..., Any]
) -> None:
    _, found = deltas(encode(TOOL_TURN), 1)
    call = [delta for delta in found if delta.kind in (DeltaKind.TOOL_CALL, DeltaKind.ARGUMENTS)]
    assert [delta.name for delta in call] == ["f", *[""] * (len(call) - 1)]
    assert call[0].kind is DeltaKind.TOOL_CALL
    assert len(call) > 5


@STEPS
def test_positions_name_the_tokens_of_the_text(
    step: int | None, encode: Callable[[str], list[int]], deltas: Callable[..., Any]
) -> None:
    token_ids = encode(TOOL_TURN)
    _, found = deltas(token_ids, step)
    bodies = ["Need the tool.", "Let me look.", '{"city": "Zürich 🏔"}']
    expected: list[int] = []
    start = 0
    for body in map(encode, bodies):
        start = _find(token_ids, body, start)
        expected += range(start, start + len(body))
    assert [p for delta in found for p in delta.positions] == expected


def _find(token_ids: list[int], body: list[int], start: int) -> int:
    while token_ids[start : start + len(body)] != body:
        start += 1
    return start


def test_half_a_character_is_held_until_it_is_whole(encode: Callable[[str], list[int]]) -> None:
    parser = Parser(frozenset())
    parser.feed(encode("<|channel|>final<|message|>"))
    goose = encode("🪿")
    assert len(goose) > 1
    held = [parser.feed([token_id]) for token_id in goose]
    assert held[:-1] == [[]] * (len(goose) - 1)
    assert [(delta.text, len(delta.positions)) for delta in held[-1]] == [("🪿", len(goose))]


def test_half_a_character_at_the_end_comes_in_finish(
    encode: Callable[[str], list[int]],
) -> None:
    parser = Parser(frozenset())
    token_ids = encode("<|channel|>final<|message|>🪿")[:-1]
    assert parser.feed(token_ids) == []
    (delta,) = parser.finish()
    assert delta.text == "\ufffd"
    assert delta.positions == (3, 4)[: len(delta.positions)]
    assert parser.finish() == []


@STEPS
def test_empty_arguments_become_an_empty_object(
    step: int | None, encode: Callable[[str], list[int]], answer: Callable[..., Any]
) -> None:
    output = " to=functions.f<|channel|>commentary json<|message|><|call|>"
    assert answer(encode(output), step).calls == [("f", "{}")]


def test_nothing_is_offered_nothing_is_called(
    encode: Callable[[str], list[int]], answer: Callable[..., Any]
) -> None:
    found = answer(encode(TOOL_TURN), tools=())
    assert found.calls == []
    assert found.reasoning == 'Need the tool.\n\n{"city": "Zürich 🏔"}'


def test_names_with_dots_and_dashes(
    encode: Callable[[str], list[int]], answer: Callable[..., Any]
) -> None:
    output = " to=functions.web-browsing.v2-<|channel|>commentary json<|message|>{}<|call|>"
    assert answer(encode(output), tools=["web-browsing.v2-"]).calls == [("web-browsing.v2-", "{}")]


def test_ids_outside_the_vocabulary_are_passed_over(
    encode: Callable[[str], list[int]], answer: Callable[..., Any]
) -> None:
    token_ids = [*encode("<|channel|>final<|message|>Hel"), -1, 201088, 2**40, 200018]
    found = answer([*token_ids, *encode("lo<|return|>")])
    assert (found.content, found.num_resyncs) == ("Hello", 4)


def test_end_of_text_ends_the_answer(
    encode: Callable[[str], list[int]], answer: Callable[..., Any]
) -> None:
    found = answer([*encode("<|channel|>final<|message|>Hello"), 199999, *encode("more")])
    assert found.content == "Hello"


def test_long_junk_header_does_not_grow_without_end(
    encode: Callable[[str], list[int]], answer: Callable[..., Any]
) -> None:
    found = answer(encode("<|channel|>" + "x" * 500 + "<|return|>"))
    assert found.content == "x" * 500


@pytest.mark.parametrize("message", ["answer", "call"])
@STEPS
def test_round_trip_of_a_rendered_turn(
    message: str, step: int | None, answer: Callable[..., Any]
) -> None:
    """What the renderer writes of an assistant's turn, the parser reads back."""
    call = ToolCall("c1", "f", json.dumps({"city": "Zürich", "days": [1, 2]}))
    turns = {
        "answer": Message("assistant", content="Grüezi 👋\n\n- a\n- b"),
        "call": Message(
            "assistant", content="Let me look.", reasoning="Look it up.", tool_calls=(call,)
        ),
    }
    user, turn = Message("user", content="hi"), turns[message]
    prompt = render(Conversation((user,), "2026-01-31"))
    whole = render(Conversation((user, turn), "2026-01-31"))
    found = answer(whole[len(prompt) : -2], step)
    assert (found.reasoning, found.content) == (turn.reasoning, turn.content)
    assert found.calls == [(c.name, c.arguments) for c in turn.tool_calls]
    assert found.num_resyncs == 0


def test_deltas_are_plain_data() -> None:
    delta = Delta(DeltaKind.CONTENT, "a")
    with pytest.raises(AttributeError):
        delta.text = "b"  # type: ignore[misc]
