"""A grammar in Lark's syntax → the EBNF that xgrammar reads.

What both can say is translated: rules, terminals, literals, patterns, repetitions and the
common terminals. Terminals are no longer than they match: there is no separate lexer, so
priorities have no meaning, and what is skipped between tokens (`%ignore`) is refused.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Final

from service.guide_pattern import PatternError
from service.guide_regex import ebnf_of_regex

COMMON: Final = {
    "CNAME": "/[A-Za-z_][A-Za-z0-9_]*/",
    "CR": r'"\r"',
    "DIGIT": "/[0-9]/",
    "ESCAPED_STRING": r'/"(\\[^\n]|[^"\\\n])*"/',
    "FLOAT": r"/[0-9]+(\.[0-9]*([eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)|\.[0-9]+([eE][+-]?[0-9]+)?/",
    "HEXDIGIT": "/[0-9a-fA-F]/",
    "INT": "/[0-9]+/",
    "LCASE_LETTER": "/[a-z]/",
    "LETTER": "/[A-Za-z]/",
    "LF": r'"\n"',
    "NEWLINE": r"/(\r?\n)+/",
    "NUMBER": r"/[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?/",
    "SIGNED_INT": "/[+-]?[0-9]+/",
    "SIGNED_NUMBER": r"/[+-]?([0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?)/",
    "UCASE_LETTER": "/[A-Z]/",
    "WORD": "/[A-Za-z]+/",
    "WS": r"/[ \t\f\r\n]+/",
    "WS_INLINE": r"/[ \t]+/",
}
_NAME: Final = r"_?[a-zA-Z][a-zA-Z0-9_]*"
_RULE: Final = re.compile(rf"[?!]{{0,2}}({_NAME})(?:\.-?\d+)?\s*:(.*)", re.DOTALL)
_IMPORT: Final = re.compile(rf"%import\s+common\s*\.\s*({_NAME})(?:\s*->\s*({_NAME}))?\s*")
_IMPORT_LIST: Final = re.compile(r"%import\s+common\s*\(([^()]*)\)\s*")
_TOKEN: Final = re.compile(
    rf"""\s*(?: (?P<string>"(?:\\.|[^"\\\n])*"i?) | (?P<regex>/(?:\\.|[^/\\\n])+/[a-z]*)
    | (?P<alias>->\s*{_NAME}) | (?P<dots>\.\.) | (?P<name>{_NAME}) | (?P<number>\d+)
    | (?P<sign>[|()\[\]*+?~]) )""",
    re.VERBOSE,
)
_LITERAL: Final = re.compile(
    r"""(?P<text>[^"/#]+) | (?P<comment>(?://|\#)[^\n]*)
    | (?P<literal>"(?:\\.|[^"\\\n])*" | /(?:\\.|[^/\\\n])+/)""",
    re.VERBOSE,
)
_MAX_CHARS: Final = 20_000


class LarkError(ValueError):
    """A grammar that cannot be translated; the message says why."""


def ebnf_of_lark(grammar: str) -> str:
    """The same language as EBNF whose first rule is `root`; raises LarkError."""
    bodies = _bodies(grammar)
    if "start" not in bodies:
        raise LarkError("there is no rule `start`")
    try:
        rules = {name: _Body(body).translated(bodies) for name, body in bodies.items()}
    except RecursionError:
        raise LarkError("it is nested too deeply") from None
    lines = [f"x_{name} ::= {rule}" for name, rule in rules.items()]
    return "\n".join(["root ::= x_start", *lines])


def _bodies(grammar: str) -> dict[str, str]:
    """What each rule and terminal is, as written."""
    bodies: dict[str, str] = {}
    for statement in _statements(_uncommented(grammar)):
        rule = _RULE.fullmatch(statement)
        found = {rule[1]: rule[2]} if rule else _imported(statement)
        for name in found:
            if name in bodies:
                raise LarkError(f"{name} is defined twice")
        bodies |= found
    return bodies


def _uncommented(grammar: str) -> str:
    """Without comments; each literal is looked at once, so that none can take long."""
    if len(grammar) > _MAX_CHARS:
        raise LarkError(f"it is longer than {_MAX_CHARS} characters")
    kept: list[str] = []
    place = 0
    while place < len(grammar):
        part = _LITERAL.match(grammar, place)
        if part is None:
            raise LarkError(f"{grammar[place : place + 40]!r} begins a literal that has no end")
        kept.append("" if part["comment"] else part[0])
        place = part.end()
    return "".join(kept)


def _statements(text: str) -> Iterator[str]:
    """Definitions and directives begin a line; what follows until the next belongs to them."""
    begun: list[str] = []
    for line in text.splitlines():
        if begun and (line.startswith("%") or _RULE.match(line)):
            yield "\n".join(begun)
            begun = []
        if begun or line.strip():
            begun.append(line)
    if begun:
        yield "\n".join(begun)


def _imported(statement: str) -> dict[str, str]:
    names: dict[str, str] = {}
    if one := _IMPORT.fullmatch(statement):
        names = {one[2] or one[1]: one[1]}
    elif several := _IMPORT_LIST.fullmatch(statement):
        names = {name.strip(): name.strip() for name in several[1].split(",")}
    if not names:
        raise LarkError(f"{statement.strip()[:60]!r} cannot be translated")
    for name in names.values():
        if name not in COMMON:
            raise LarkError(f"common.{name} is not known here")
    return {name: COMMON[common] for name, common in names.items()}


class _Body:
    """Reads one rule's right side."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        text, place = text.rstrip(), 0
        while place < len(text):
            token = _TOKEN.match(text, place)
            if token is None:
                raise LarkError(f"{text[place : place + 60].strip()!r} cannot be translated")
            assert token.lastgroup is not None
            self._tokens.append((token.lastgroup, token[token.lastgroup]))
            place = token.end()
        self._place = 0

    def translated(self, known: dict[str, str]) -> str:
        written = self._choices(known)
        if self._place < len(self._tokens):
            raise LarkError(f"{self._tokens[self._place][1]!r} is out of place")
        return written

    def _next(self, *texts: str) -> str | None:
        """Take the next token if it is one of these."""
        if self._place < len(self._tokens) and self._tokens[self._place][1] in texts:
            self._place += 1
            return self._tokens[self._place - 1][1]
        return None

    def _kind(self) -> str:
        return self._tokens[self._place][0] if self._place < len(self._tokens) else ""

    def _take(self, kind: str) -> str:
        if self._kind() != kind:
            raise LarkError(f"a {kind} is missing")
        self._place += 1
        return self._tokens[self._place - 1][1]

    def _choices(self, known: dict[str, str]) -> str:
        choices = [self._sequence(known)]
        while self._next("|"):
            choices.append(self._sequence(known))
        return " | ".join(choices)

    def _sequence(self, known: dict[str, str]) -> str:
        items: list[str] = []
        while self._kind() and self._tokens[self._place][1] not in ("|", ")", "]"):
            if self._kind() == "alias":  # names the branch; the language is the same
                self._place += 1
            else:
                items.append(self._repeated(self._atom(known)))
        return " ".join(items) or '""'

    def _repeated(self, item: str) -> str:
        if sign := self._next("*", "+", "?"):
            return f"({item}){sign}"
        if not self._next("~"):
            return item
        low = high = self._take("number")
        if self._next(".."):
            high = self._take("number")
        return f"({item}){{{low},{high}}}"

    def _atom(self, known: dict[str, str]) -> str:
        if opened := self._next("(", "["):
            inner = self._choices(known)
            if not self._next(")" if opened == "(" else "]"):
                raise LarkError(f"a {opened!r} is not closed")
            return f"({inner})" if opened == "(" else f"({inner})?"
        kind = self._kind()
        if kind == "string":
            return self._string(self._take(kind))
        if kind == "regex":
            return _regex(self._take(kind))
        name = self._take("name")
        if name not in known:
            raise LarkError(f"{name} is not defined")
        return f"x_{name}"

    def _string(self, first: str) -> str:
        if not self._next(".."):
            return _literal(first)
        low, high = _text(first), _text(self._take("string"))
        if len(low) != 1 or len(high) != 1 or low > high:
            raise LarkError(f"{first} begins no range of characters")
        return ebnf_of_regex(f"[{re.escape(low)}-{re.escape(high)}]")


def _regex(written: str) -> str:
    pattern, _, flags = written[1:].rpartition("/")
    if flags:
        raise LarkError(f"the flags of {written[:40]} cannot be translated")
    try:
        return f"({ebnf_of_regex(pattern.replace(chr(92) + '/', '/'))})"
    except PatternError as error:
        raise LarkError(f"{written[:40]}: {error}") from None


def _literal(written: str) -> str:
    text = _text(written)
    if written.endswith("i"):
        letters = [f"[{char.lower()}{char.upper()}]" if char.isalpha() else "" for char in text]
        parts = [a or json.dumps(b, ensure_ascii=False) for a, b in zip(letters, text, strict=True)]
        return f"({' '.join(parts)})"
    return json.dumps(text, ensure_ascii=False)


def _text(written: str) -> str:
    try:
        return str(ast.literal_eval(written.removesuffix("i")))
    except (SyntaxError, ValueError):
        raise LarkError(f"{written[:40]} is no string") from None
