"""A pattern of JSON Schema, which is ECMAScript's, as the engine reads it: in Rust's syntax."""

from __future__ import annotations

import re
from typing import Any, Final

_MAX_CHARS: Final = 10_000  # the engine's
_MAX_REPEATS: Final = 1_000_000  # of a part, within what else repeats it

_CATEGORIES: Final = (
    r"L[ultmo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?|Letter|Number|Punctuation"
)
_CHAR: Final = r"x[0-9a-fA-F]{2}|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|[!-/:;=?@\[-`{-~ ]"
_ESCAPE: Final = rf"\\(?:[dDwWsSntrfv]|[pP]\{{(?:{_CATEGORIES})\}}|{_CHAR})"
_TOKEN: Final = re.compile(
    rf"""
      (?P<open>\((?!\?)|\(\?:|\(\?P?<[A-Za-z_]\w*>)
    | (?P<close>\))
    | (?P<either>\|)
    | (?P<start>\^)
    | (?P<end>\$)
    | (?P<repeat>(?:[*+?]|\{{\d{{1,5}}(?:,\d{{0,5}})?\}})\??)
    | (?P<set>\[\^?+(?!\])(?:{_ESCAPE}|[^\\\]])+\])
    | (?P<atom>{_ESCAPE}|[^\\^$.|?*+()\[\]{{}}]|\.|[\]}}])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_ONE: Final = rf"(?:\\(?:{_CHAR})|[^\\])"
_ITEM: Final = re.compile(
    rf"(?P<low>{_ONE})-(?P<high>{_ONE})|{_ESCAPE}|[^\\]", re.DOTALL | re.ASCII
)


def engine_pattern(pattern: str) -> str:
    """The pattern as the engine reads it, escaped where the two dialects differ in silence.

    In brackets Rust has classes within classes and `&&`, `--` and `~~` between them, which are
    plain characters in ECMAScript. Where they differ otherwise, the engine refuses the pattern.
    """
    if "[" not in pattern:
        return pattern
    written: list[str] = []
    is_escaped = is_within = False
    for char in pattern:
        last = written[-1] if written else ""
        if is_within and not is_escaped and (char in "[&~" or char == last == "-"):
            char = "\\" + char
        elif not is_escaped and char in "[]":
            is_within = char == "["
        is_escaped = char == "\\" and not is_escaped
        written.append(char)
    return "".join(written)


def is_enforceable(pattern: Any) -> bool:
    """Whether it is certain that the engine takes a pattern: it looks nowhere else and refers to
    nothing, and its anchors are at its ends."""
    if not isinstance(pattern, str) or len(pattern) > _MAX_CHARS:
        return False
    position, depth, repeats = 0, 0, 1
    is_fresh, is_ended = True, False  # no text before this place, none after it
    last, is_anchored = "either", False  # the token before; an anchor is within a group
    while position < len(pattern):
        token = _TOKEN.match(pattern, position)
        if token is None:
            return False
        position, kind = token.end(), str(token.lastgroup)
        if is_ended and kind != "close" and (kind != "either" or depth):
            return False
        if kind == "repeat" and (last not in ("atom", "set", "close") or is_anchored):
            return False
        if kind == "start" and not is_fresh:
            return False
        if kind == "set" and not _is_set(token[0][1:-1].removeprefix("^")):
            return False
        if kind == "repeat":
            most = _most(token[0])
            repeats *= max(most, 1)
            if most < 0 or repeats > _MAX_REPEATS:
                return False
        is_ended = kind == "end" or (is_ended and kind == "close")
        is_anchored |= kind in ("start", "end") and depth > 0
        is_fresh = (is_fresh and kind in ("open", "start")) or (kind == "either" and not depth)
        depth += (kind == "open") - (kind == "close")
        if depth < 0:
            return False
        last = kind
    return depth == 0


def _most(repeat: str) -> int:
    """How often a quantifier repeats; negative for one whose bounds are the wrong way round."""
    if repeat[0] != "{":
        return 1
    least, _, most = repeat.strip("{}?").partition(",")
    return int(most or least) if int(most or least) >= int(least) else -1


def _is_set(items: str) -> bool:
    """Whether ranges in brackets are from a character up to a character, and a minus is no more."""
    for item in _ITEM.finditer(items):
        if item["low"]:
            if "-" in (item["low"], item["high"]) or _code(item["low"]) > _code(item["high"]):
                return False
        elif item[0] == "-" and 0 < item.start() < len(items) - 1:
            return False
    return True


def _code(char: str) -> int:
    return int(char[2:], 16) if len(char) > 2 else ord(char[-1])
