"""Whether a grammar in Lark's syntax says no more than a client may: one pass over its text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from engines.errors import InvalidGrammar

MAX_REGEX: Final = 10_000  # characters of one pattern; more take too long to compile

# Each piece of text is looked at once: no alternative begins as another does.
_PIECE: Final = re.compile(
    r"""(?P<plain>[^"/\#<@%~=]++)
    | (?P<comment>(?://|\#)[^\n]*+)
    | (?P<string>"(?:\\(?:["\\/bfnrt]|u[a-fA-F0-9]{4}|x[a-fA-F0-9]{2})|[^"\\\x00-\x1f\x7f])*+"i?)
    | (?P<regex>/(?:\\[^\n]|[^/\\])++/[imsux]*+)
    | (?P<directive>%(?:import|ignore)\b)
    | (?P<repeated>~[ \t]*+(?=[0-9]))""",
    re.VERBOSE,
)
_REASONS: Final = {
    '"': "a string that is not closed on its line, or has an unknown escape",
    "/": "a pattern that is not closed",
    "<": "a token; a grammar describes text only",
    "@": "another grammar",
    "%": "a directive other than %import and %ignore",
    "~": "a negation; say what is allowed instead",
    "=": "an attribute",
}


def check_lark(grammar: str) -> None:
    """Raise InvalidGrammar for what could reach beyond text: tokens, options, negations.

    A negated pattern matches bytes that are not text, as control tokens have them.
    """
    for _ in _pieces(grammar):
        pass


def embeddable(grammar: str) -> str:
    """The grammar in a form that fits in braces within another; raises as check_lark does.

    Its comments are left out: what is a comment must not decide which brace closes the grammar.
    """
    text, depth = [], 0
    for piece in _pieces(grammar.removeprefix("%llguidance {}")):
        if piece["comment"]:
            continue
        text.append(piece[0])
        for brace in re.findall("[{}]", piece["plain"] or ""):
            depth += 1 if brace == "{" else -1
            if depth < 0:
                raise InvalidGrammar("the grammar has a } without its {")
    if depth:
        raise InvalidGrammar("the grammar has a { without its }")
    return "".join(text).strip()


def _pieces(grammar: str) -> Iterator[re.Match[str]]:
    place = 0
    while place < len(grammar):
        piece = _PIECE.match(grammar, place)
        if piece is None:
            line = grammar.count("\n", 0, place) + 1
            raise InvalidGrammar(
                f"line {line} has {_REASONS[grammar[place]]}: {grammar[place : place + 40]!r}"
            )
        if piece["regex"] and len(piece["regex"]) > MAX_REGEX:
            raise InvalidGrammar(f"a pattern is longer than {MAX_REGEX} characters")
        yield piece
        place = piece.end()
