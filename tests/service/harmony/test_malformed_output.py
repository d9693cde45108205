"""What we answer to each malformed shape that gpt-oss is known to write.

docs/harmony.md has the same shapes with the reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from service.harmony.vocabulary import CALL, CHANNEL, MESSAGE, RETURN, encode_text

ARGS = '{"a":1}'
THINK = "<|channel|>analysis<|message|>think<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Hello<|return|>"

# name: (the model's output, reasoning, content, calls)
SHAPES: dict[str, tuple[str, str, str, list[tuple[str, str]]]] = {
    "a blank in the recipient": (
        f"<|channel|>commentary to=functions. f <|constrain|>json<|message|>{ARGS}<|call|>",
        "",
        "",
        [("f", ARGS)],
    ),
    "a quoted recipient": (
        f'<|channel|>commentary to="functions.f" <|constrain|>json<|message|>{ARGS}<|call|>',
        "",
        "",
        [("f", ARGS)],
    ),
    "a quoted recipient in the role": (
        f" to='functions.f'<|channel|>commentary json<|message|>{ARGS}<|call|>",
        "",
        "",
        [("f", ARGS)],
    ),
    "recipient in role and channel": (
        " to=functions.f<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
        f"{ARGS}<|call|>",
        "",
        "",
        [("f", ARGS)],
    ),
    "commentary to assistant": (
        "<|channel|>commentary to=assistant<|message|>Hello there<|end|>" + FINAL,
        "",
        "Hello there\n\nHello",
        [],
    ),
    "refusal without a header": ("I'm sorry, but no.<|return|>", "", "I'm sorry, but no.", []),
    "refusal without a header, then a final": (
        "I'm sorry, but no.<|end|>" + FINAL,
        "",
        "I'm sorry, but no.\n\nHello",
        [],
    ),
    "one word without a header": ("Sorry<|return|>", "", "Sorry", []),
    "one word without a header, then a channel": (
        "Sorry<|channel|>final<|message|>Hello<|return|>",
        "",
        "Sorry\n\nHello",
        [],
    ),
    "free text after channel, then a final": (
        "<|channel|>We need to check<|end|>" + FINAL,
        "We need to check",
        "Hello",
        [],
    ),
    "free text after channel is all": (
        "<|channel|>We need no tool<|return|>",
        "",
        "We need no tool",
        [],
    ),
    "free text after channel, after reasoning": (
        THINK + "<|start|>assistant<|channel|>It is four<|return|>",
        "think",
        "It is four",
        [],
    ),
    "assistantassistant": (
        THINK + FINAL.replace("assistant", "assistantassistant"),
        "think",
        "Hello",
        [],
    ),
    "a header without control tokens": (
        "assistantfinalHello there<|return|>",
        "",
        "Hello there",
        [],
    ),
    "a header without control tokens, after reasoning": (
        THINK + "assistantfinalHello<|return|>",
        "think",
        "Hello",
        [],
    ),
    "a header without control tokens, cut": ("assistantfinal", "", "", []),
    "text after end": (THINK + "Hello there<|return|>", "think", "Hello there", []),
    "channel without start": (
        THINK + "<|channel|>final<|message|>Hello<|return|>",
        "think",
        "Hello",
        [],
    ),
    "assistant without start": (
        THINK + "assistant<|channel|>final<|message|>Hello<|return|>",
        "think",
        "Hello",
        [],
    ),
    "empty channel, then a final": (
        "<|channel|><|message|>think<|end|>" + FINAL,
        "think",
        "Hello",
        [],
    ),
    "empty channel is all": ("<|channel|><|message|>Hello<|return|>", "", "Hello", []),
    "empty channel after reasoning": (
        THINK + "<|start|>assistant<|channel|><|message|>Hello<|return|>",
        "think",
        "Hello",
        [],
    ),
    "no channel": (THINK + "<|start|>assistant<|message|>Hello<|return|>", "think", "Hello", []),
    "final without message": ("<|channel|>final Hello<|return|>", "", "Hello", []),
    "analysis without message": (
        "<|channel|>analysis We need no tool.<|end|>" + FINAL,
        "We need no tool.",
        "Hello",
        [],
    ),
    "analysis glued to its text": (
        "<|channel|>analysisWe need no tool.<|end|>" + FINAL,
        "We need no tool.",
        "Hello",
        [],
    ),
    "call without message": (
        "<|channel|>commentary to=functions.f <|constrain|>json" + ARGS + "<|call|>",
        "",
        "",
        [("f", ARGS)],
    ),
    "call without message, constrain or space": (
        f" to=functions.f{ARGS}<|call|>",
        "",
        "",
        [("f", ARGS)],
    ),
    "call without message or arguments": (
        "<|channel|>commentary to=functions.f<|call|>",
        "",
        "",
        [("f", "{}")],
    ),
    "channel name without channel": (
        "analysis<|message|>think<|end|><|start|>assistant final<|message|>Hello<|return|>",
        "think",
        "Hello",
        [],
    ),
    "junk at the end of the channel": (
        "<|channel|>commentary?<|message|>Hello<|return|>",
        "",
        "Hello",
        [],
    ),
    "junk channel, then a final": (
        "<|channel|>thoughts<|message|>think<|end|>" + FINAL,
        "think",
        "Hello",
        [],
    ),
    "junk channel after reasoning": (
        THINK + "<|start|>assistant<|channel|>reply<|message|>Hello<|return|>",
        "think",
        "Hello",
        [],
    ),
    "call header cut by start, then a final": (
        "<|channel|>commentary to=functions.f" + FINAL,
        "",
        "Hello",
        [],
    ),
    "call header cut by start, then its arguments": (
        f"<|channel|>commentary to=functions.f<|start|>assistant<|message|>{ARGS}<|call|>",
        "",
        "",
        [("f", ARGS)],
    ),
    "final json": (f"<|channel|>final json<|message|>{ARGS}<|return|>", "", ARGS, []),
    "final constrain json": (
        f"<|channel|>final <|constrain|>json<|message|>{ARGS}<|return|>",
        "",
        ARGS,
        [],
    ),
    "call on the analysis channel": (
        f"<|channel|>analysis to=functions.f code<|message|>{ARGS}<|call|>",
        "",
        "",
        [("f", ARGS)],
    ),
    "recipient without namespace": (
        f"<|channel|>commentary to=f<|message|>{ARGS}<|call|>",
        "",
        "",
        [("f", ARGS)],
    ),
    "junk after the recipient": (
        f" to=functions.f?<|channel|>commentary json<|message|>{ARGS}<|call|>",
        "",
        "",
        [("f", ARGS)],
    ),
    "recipient without to": (
        f"<|channel|>commentary functions.f<|message|>{ARGS}<|call|>",
        "",
        "",
        [("f", ARGS)],
    ),
    "function that was not offered": (
        f"<|channel|>commentary to=functions.nope json<|message|>{ARGS}<|call|>",
        ARGS,
        "",
        [],
    ),
    "python that was not offered": (
        "<|channel|>analysis to=python code<|message|>print(1)<|call|>",
        "print(1)",
        "",
        [],
    ),
    "browser that was not offered": (
        "<|channel|>analysis to=browser.search code<|message|>{}<|call|>",
        "{}",
        "",
        [],
    ),
    "final to a function that was not offered": (
        "<|channel|>final to=functions.nope<|message|>Hello<|return|>",
        "",
        "Hello",
        [],
    ),
    "channel inside a body": (
        "<|channel|>analysis<|message|>think<|channel|>final<|message|>Hello<|return|>",
        "think",
        "Hello",
        [],
    ),
    "start inside a body": ("<|channel|>analysis<|message|>think" + FINAL, "think", "Hello", []),
    "message and constrain inside a body": (
        "<|channel|>final<|message|>Hel<|message|>l<|constrain|>o<|return|>",
        "",
        "Hello",
        [],
    ),
    "tail after return": (
        "<|channel|>final<|message|>Hello<|return|><|start|>user<|message|>Thanks<|end|>",
        "",
        "Hello",
        [],
    ),
    "cut inside the channel": ("<|channel|>comm", "", "", []),
    "cut inside the recipient": ("<|channel|>commentary to=functions.", "", "", []),
    "cut inside the author": (THINK + "<|start|>assist", "think", "", []),
    "cut inside the arguments": (
        '<|channel|>commentary to=functions.f<|message|>{"a":"b',
        "",
        "",
        [("f", '{"a":"b')],
    ),
    "two calls of one function": (
        f" to=functions.f<|channel|>commentary json<|message|>{ARGS}<|call|>"
        "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
        "",
        "",
        [("f", ARGS), ("f", "{}")],
    ),
    "arguments that are not ASCII": (
        '<|channel|>commentary to=functions.f<|message|>{"a":"é"}<|call|>',
        "",
        "",
        [("f", '{"a":"é"}')],
    ),
    "arguments that are not JSON": (
        "<|channel|>commentary to=functions.f<|message|>a = 1<|call|>",
        "",
        "",
        [("f", "a = 1")],
    ),
    "preamble, then final": (
        "<|channel|>commentary<|message|>pre<|end|>" + FINAL,
        "",
        "pre\n\nHello",
        [],
    ),
    "header repeated": ("<|start|>assistant<|channel|>final<|message|>Hi<|return|>", "", "Hi", []),
    "tool result made up": (
        THINK + "<|start|>functions.f to=assistant<|channel|>commentary<|message|>4<|end|>" + FINAL,
        "think\n\n4",
        "Hello",
        [],
    ),
    "user turn made up": (
        THINK + "<|start|>user<|message|>And then?<|end|>" + FINAL,
        "think\n\nAnd then?",
        "Hello",
        [],
    ),
}


@pytest.mark.parametrize("step", [1, 3, 8, None])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=[n.replace(" ", "_") for n in SHAPES])
def test_shape(
    shape: tuple[str, str, str, list[tuple[str, str]]],
    step: int | None,
    encode: Callable[[str], list[int]],
    answer: Callable[..., Any],
) -> None:
    output, reasoning, content, calls = shape
    found = answer(encode(output), step)
    assert (found.reasoning, found.content, found.calls) == (reasoning, content, calls)


@pytest.mark.parametrize("step", [1, 3, 8, None])
def test_output_cut_inside_an_emoji_ends_in_one_replacement(
    step: int | None, encode: Callable[[str], list[int]], answer: Callable[..., Any]
) -> None:
    token_ids = encode("<|channel|>final<|message|>ok 🪿")
    assert answer(token_ids, step).content == "ok 🪿"
    assert answer(token_ids[:-1], step).content == "ok \ufffd"


@pytest.mark.parametrize("step", [1, 3, 8, None])
def test_literal_markup_in_a_body_is_text(step: int | None, answer: Callable[..., Any]) -> None:
    """A model asked about Harmony may spell a marker; only the token is control."""

    spelt = encode_text("A turn ends with <|end|>.")
    token_ids = [CHANNEL, *encode_text("final"), MESSAGE, *spelt, RETURN]
    assert answer(token_ids, step).content == "A turn ends with <|end|>."


@pytest.mark.parametrize("step", [1, 3, 8, None])
def test_literal_markup_after_a_recipient_is_not_part_of_the_name(
    step: int | None, answer: Callable[..., Any]
) -> None:

    header = encode_text("commentary to=functions.f<|channel|>commentary")
    token_ids = [CHANNEL, *header, MESSAGE, *encode_text(ARGS), CALL]
    assert answer(token_ids, step).calls == [("f", ARGS)]


WELL_FORMED = (
    THINK + FINAL,
    "<|channel|>commentary<|message|>pre<|end|>" + FINAL,
    THINK
    + "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>"
    + ARGS
    + "<|call|>",
    "<|channel|>commentary to=functions.f <|constrain|>json<|message|>" + ARGS + "<|call|>",
    "<|channel|>final <|constrain|>json<|message|>" + ARGS + "<|return|>",
)


@pytest.mark.parametrize("output", WELL_FORMED)
def test_documented_format_counts_no_repair(
    output: str, encode: Callable[[str], list[int]], answer: Callable[..., Any]
) -> None:
    assert answer(encode(output)).num_resyncs == 0


@pytest.mark.parametrize(
    "name",
    [
        "refusal without a header",
        "assistantassistant",
        "channel without start",
        "empty channel is all",
        "final without message",
        "junk at the end of the channel",
        "call header cut by start, then a final",
        "function that was not offered",
        "channel inside a body",
        "start inside a body",
        "tool result made up",
    ],
)
def test_repairs_are_counted(
    name: str, encode: Callable[[str], list[int]], answer: Callable[..., Any]
) -> None:
    assert answer(encode(SHAPES[name][0])).num_resyncs >= 1
