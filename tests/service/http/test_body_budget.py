"""What a body may be made of: counted before anything is made of it, and named in the refusal."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.api.chat.schema import ChatRequest
from service.http.body import (
    MAX_KEYS_OF_ONE,
    MAX_MESSAGE_OBJECTS,
    MAX_MESSAGES,
    BodyError,
    BodyScan,
    check_shape,
    parse,
)
from service.work import MAX_ESCAPES, MAX_KEYS, MAX_OBJECTS, MAX_VALUES
from tests.calls import num_calls
from tests.examples import any_text, examples

TURN = {"role": "user", "content": "Hi"}
VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a"\\[]{},:é\n', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text(max_size=4), inner),
    max_leaves=20,
)


def _num_parts(value: Any) -> tuple[int, int, int]:
    """Objects and lists, keys, and values but the first of each: as the scan counts them."""
    if not isinstance(value, dict | list):
        return 0, 0, 0
    inner = list(value.values() if isinstance(value, dict) else value)
    found = [_num_parts(child) for child in inner]
    keys = len(value) if isinstance(value, dict) else 0
    return (
        1 + sum(f[0] for f in found),
        keys + sum(f[1] for f in found),
        1 + max(len(inner) - 1, 0) + sum(f[2] for f in found),
    )


def _num_escapes(text: str) -> int:
    """As json writes it: a character that is not itself."""
    return sum(len(json.dumps(letter)) != 3 for letter in text if letter.isascii())


@examples(300)
@given(st.text(alphabet='a"\\é\n/', max_size=12), st.integers(1, 5))
def test_the_scan_counts_what_a_text_has_escaped(text: str, size: int) -> None:
    scan, written = BodyScan(), json.dumps(text, ensure_ascii=False).encode()
    for start in range(0, len(written), size):
        scan.count(written[start : start + size])
    assert scan.escapes.spent == _num_escapes(text)


@examples(300)
@given(VALUES, st.integers(1, 7), st.booleans())
def test_the_scan_counts_what_is_there_however_the_bytes_come(
    value: Any, size: int, is_ascii: bool
) -> None:
    scan = BodyScan()
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    for start in range(0, len(text), size):
        scan.count(text[start : start + size])
    assert (scan.objects.spent, scan.keys.spent, scan.values.spent) == _num_parts(value)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"[" * (MAX_OBJECTS + 1), "objects and lists"),
        (b'"a":1,' * (MAX_KEYS + 1), "keys"),
        (b"1," * (MAX_VALUES + 1), "values"),
        (b'"' + rb"\\\n" * (MAX_ESCAPES // 2) + rb"\"", "characters written with a backslash"),
    ],
)
def test_too_many_parts_are_a_413_that_names_the_limit(body: bytes, word: str) -> None:
    with pytest.raises(BodyError, match=f"more than [0-9]+ {word}") as caught:
        BodyScan().count(body)
    assert caught.value.error.status == 413
    assert caught.value.error.code == "body_too_complex"


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"messages": [TURN] * (MAX_MESSAGES + 1)}, "messages", f"{MAX_MESSAGES + 1} items"),
        ({"input": [[[[]]] * 2000] * 2}, "input", f"at most {MAX_MESSAGE_OBJECTS}"),
        (
            {"metadata": {"a": dict.fromkeys(map(str, range(MAX_KEYS_OF_ONE + 1)))}},
            "metadata",
            f"{MAX_KEYS_OF_ONE + 1} keys",
        ),
        (dict.fromkeys(map(str, range(MAX_KEYS_OF_ONE + 1))), None, "The body has"),
    ],
)
def test_what_one_field_may_hold_is_bounded_by_name(body: Any, param: str, words: str) -> None:
    with pytest.raises(BodyError, match=words) as caught:
        check_shape(body)
    assert caught.value.error.param == param


def test_what_people_send_is_let_through() -> None:
    """A full context of short messages, 128 tools of 60 properties, and as many token ids."""
    named = {f"p{i}": {"type": "string", "description": "d"} for i in range(60)}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": named}}}
    chat = {"messages": [TURN] * MAX_MESSAGES, "tools": [tool] * 128}
    for body in (chat, {"prompt": [1] * 262_000}):
        content = json.dumps(body).encode()
        BodyScan().count(content)
        check_shape(body)


def test_all_that_a_body_may_hold_is_looked_at_in_few_calls() -> None:
    ids = json.dumps({"prompt": [1] * 262_000}).encode()
    turns = json.dumps({"model": "m", "messages": [TURN] * MAX_MESSAGES}).encode()
    text = json.dumps({"model": "m", "prompt": 'Say "hello, world" [now]. ' * 3_800}).encode()
    assert num_calls(lambda: check_shape(parse(ids))) < 100  # none for each number
    validating = num_calls(lambda: ChatRequest.model_validate(msgspec.json.decode(turns)))
    assert validating < 8 * MAX_MESSAGES
    assert num_calls(lambda: BodyScan().count(text[:65_536])) < 100


@pytest.mark.parametrize("field", ["messages", "modalities", "stop", "tools"])
def test_a_list_of_wrong_items_is_one_error(field: str) -> None:
    body = {"model": "m", "messages": [TURN], field: [[]] * 16}
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate(body)
    assert caught.value.error_count() == 1
