"""A regular expression → an EBNF expression of the same language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.guide_pattern import Node, PatternError, op, parsed_pattern, ranges_of, span_of


def ebnf_of_regex(pattern: str) -> str:
    """What xgrammar reads; the whole text matches. Raises PatternError."""
    return _sequence(parsed_pattern(pattern))


def _sequence(nodes: Sequence[Node]) -> str:
    return " ".join(_node(*node) for node in nodes) or '""'


def _node(kind: Any, value: Any) -> str:
    if kind is op.BRANCH:
        return "(" + " | ".join(_sequence(list(part)) for part in value[1]) + ")"
    if kind is op.SUBPATTERN:
        _, added, removed, part = value
        if added or removed:
            raise PatternError("flags are not supported")
        return f"({_sequence(list(part))})"
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
        low, high, part = value
        bound = "" if high is op.MAXREPEAT else high
        return f"({_sequence(list(part))}){{{low},{bound}}}"
    return _characters(kind, value)


def _characters(kind: Any, value: Any) -> str:
    if kind is op.ANY:
        return r"[^\n]"
    if kind in (op.LITERAL, op.NOT_LITERAL):
        return f"[{'' if kind is op.LITERAL else '^'}{span_of(value, value)}]"
    if kind is not op.IN:
        raise PatternError("look-around, back-references and anchors cannot be enforced")
    is_negated = value[0][0] is op.NEGATE
    spans = [span_of(*range) for item in value[is_negated:] for range in ranges_of(*item)]
    return f"[{'^' if is_negated else ''}{''.join(spans)}]"
