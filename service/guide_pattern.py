"""A schema's `pattern` → the pattern of the JSON text that spells such a string.

What may not stand in a JSON string as it is (quotes, backslashes, control characters) is
escaped or left out; a pattern that is not anchored may have anything around it. The new
pattern may allow fewer strings than the old one, never more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

# The library's own parser has no public name; its trees are the same in 3.11 and 3.12.
_parser: Any = import_module("re._parser")
op: Any = import_module("re._constants")

_ANYTHING: Final = r'[^"\\\x00-\x1f\x7f]*'
_ESCAPES: Final = {
    ord('"'): r"\\\"",
    ord("\\"): r"\\\\",
    8: r"\\b",
    9: r"\\t",
    10: r"\\n",
    12: r"\\f",
    13: r"\\r",
}
_UNSAFE: Final = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF))
_LAST: Final = 0x10FFFF
_MAX_REPEATS: Final = 1000  # of one character
_MAX_GROUP_REPEATS: Final = 64  # more make every step slow
_NAMED_GROUP = re.compile(r"\(\?<(?=[A-Za-z])")

Range = tuple[int, int]
Node = tuple[Any, Any]


class PatternError(ValueError):
    """A pattern that cannot be enforced; the message says why."""


def json_pattern(pattern: str, min_length: int = 0, max_length: int | None = None) -> str:
    """The pattern of the text between the quotes; raises PatternError."""
    nodes: Sequence[Node] = parsed_pattern(pattern)
    if not min_length and max_length is None:
        return _sequence(nodes, is_head=True, is_tail=True, is_padded=True)
    nodes = _fitted(nodes, min_length, max_length)
    return _sequence(nodes, is_head=True, is_tail=True, is_padded=False)


def parsed_pattern(pattern: str) -> list[Node]:
    """The tree of a pattern, as Python's library reads it; raises PatternError."""
    try:
        parsed = _parser.parse(_NAMED_GROUP.sub("(?P<", pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"it is not a regular expression: {error}") from None
    if parsed.state.flags & ~re.UNICODE:
        raise PatternError("flags are not supported")
    return list(parsed)


def _fitted(nodes: Sequence[Node], min_length: int, max_length: int | None) -> Sequence[Node]:
    """The same with the lengths in it, if that can be said: one character class repeated."""
    limit = op.MAXREPEAT if max_length is None else max_length
    core = [node for node in nodes if node[0] is not op.AT]
    if len(core) == 1 and core[0][0] in (op.MAX_REPEAT, op.MIN_REPEAT):
        low, high, item = core[0][1]
        if item.getwidth() == (1, 1):
            low, high = max(low, min_length), min(high, limit)
            core = [(op.MAX_REPEAT, (low, high, item))]
    shortest, longest = _width(core)
    if shortest < min_length or longest > limit or shortest > longest:
        raise PatternError(
            f"it allows {shortest} to {longest} characters; minLength and maxLength beside it "
            "cannot be enforced, so put the lengths into the pattern"
        )
    return core


def _width(nodes: list[Node]) -> tuple[int, int]:
    state = _parser.State()
    width: tuple[int, int] = _parser.SubPattern(state, nodes).getwidth()
    return width


def _sequence(nodes: Sequence[Node], *, is_head: bool, is_tail: bool, is_padded: bool) -> str:
    """Nodes one after another; a head or tail without its anchor gets anything before or after."""
    nodes = list(nodes)
    before = after = ""
    if is_head and nodes and _is_anchor(nodes[0], op.AT_BEGINNING, op.AT_BEGINNING_STRING):
        nodes, is_head = nodes[1:], False
    if is_tail and nodes and _is_anchor(nodes[-1], op.AT_END, op.AT_END_STRING):
        nodes, is_tail = nodes[:-1], False
    if is_head and not (nodes and _is_group(nodes[0])):
        is_head, before = False, _ANYTHING if is_padded else ""
    if is_tail and not (nodes and _is_group(nodes[-1])):
        is_tail, after = False, _ANYTHING if is_padded else ""
    last = len(nodes) - 1
    parts = [
        _node(
            node,
            is_head=is_head and i == 0,
            is_tail=is_tail and i == last,
            is_padded=is_padded,
        )
        for i, node in enumerate(nodes)
    ]
    return before + "".join(parts) + after


def _is_anchor(node: Node, *places: Any) -> bool:
    return node[0] is op.AT and node[1] in places


def _is_group(node: Node) -> bool:
    return node[0] in (op.BRANCH, op.SUBPATTERN)


def _node(node: Node, *, is_head: bool, is_tail: bool, is_padded: bool) -> str:
    kind, value = node
    inner = {"is_head": is_head, "is_tail": is_tail, "is_padded": is_padded}
    if kind is op.BRANCH:
        return "(?:" + "|".join(_sequence(part, **inner) for part in value[1]) + ")"
    if kind is op.SUBPATTERN:
        _, added, removed, part = value
        if added or removed:
            raise PatternError("flags are not supported")
        return "(?:" + _sequence(part, **inner) + ")"
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
        return _repeat(*value)
    return _characters(kind, value)


def _repeat(low: int, high: Any, part: Any) -> str:
    limit = _MAX_REPEATS if part.getwidth() == (1, 1) else _MAX_GROUP_REPEATS
    largest = low if high is op.MAXREPEAT else high
    if largest > limit:
        raise PatternError(f"it repeats something {largest} times; at most {limit} can be enforced")
    item = _sequence(part, is_head=False, is_tail=False, is_padded=False)
    bound = "" if high is op.MAXREPEAT else high
    return f"(?:{item}){{{low},{bound}}}"


def _characters(kind: Any, value: Any) -> str:
    if kind is op.LITERAL:
        return _class([(value, value)], is_listed=True)
    if kind is op.NOT_LITERAL:
        return _class(_complement([(value, value)]), is_listed=False)
    if kind is op.ANY:
        return _class([(0, _LAST)], is_listed=False)
    if kind is op.IN:
        is_negated = value[0][0] is op.NEGATE
        ranges = [range for item in value[is_negated:] for range in ranges_of(*item)]
        return _class(_complement(ranges) if is_negated else ranges, is_listed=not is_negated)
    raise PatternError("look-around, back-references and anchors inside it cannot be enforced")


_CATEGORIES: Final = {
    op.CATEGORY_DIGIT: [(48, 57)],
    op.CATEGORY_WORD: [(48, 57), (65, 90), (95, 95), (97, 122)],
    op.CATEGORY_SPACE: [(9, 10), (12, 13), (32, 32)],
}
_NEGATED: Final = {
    op.CATEGORY_NOT_DIGIT: str.isdecimal,
    op.CATEGORY_NOT_WORD: lambda char: char.isalnum() or char == "_",
    op.CATEGORY_NOT_SPACE: str.isspace,
}


def ranges_of(kind: Any, value: Any) -> list[Range]:
    if kind is op.LITERAL:
        return [(value, value)]
    if kind is op.RANGE:
        return [value]
    if value in _CATEGORIES:
        return _CATEGORIES[value]
    # Of what a negated category allows, what all dialects agree on: ASCII.
    is_excluded = _NEGATED[value]
    return [(code, code) for code in range(128) if not is_excluded(chr(code))]


def _complement(ranges: list[Range]) -> list[Range]:
    gaps, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            gaps.append((start, low - 1))
        start = max(start, high + 1)
    return [*gaps, (start, _LAST)] if start <= _LAST else gaps


def _class(ranges: list[Range], *, is_listed: bool) -> str:
    """One character of the ranges; those that need an escape only if they were listed."""
    safe = _complement([*_complement(ranges), *_UNSAFE])
    choices = [f"[{''.join(span_of(*span) for span in safe)}]"] if safe else []
    if is_listed:
        choices += [
            text for code, text in _ESCAPES.items() if any(a <= code <= b for a, b in ranges)
        ]
    if not choices:
        raise PatternError("it needs a character that cannot be written here")
    return choices[0] if len(choices) == 1 else "(?:" + "|".join(choices) + ")"


def span_of(low: int, high: int) -> str:
    return _char(low) if low == high else f"{_char(low)}-{_char(high)}"


def _char(code: int) -> str:
    char = chr(code)
    return (
        char if char.isascii() and char.isalnum() else f"\\u{code:04x}" if code <= 0xFFFF else char
    )
