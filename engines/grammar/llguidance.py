"""A grammar in the dialects of llguidance: a Lark grammar that names others, or holds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from engines.errors import InvalidGrammar
from engines.grammar.lark import MAX_REGEX, check_lark, embeddable
from engines.grammar.tree import (
    Alternation,
    Concatenation,
    Gbnf,
    Grammar,
    JsonSchema,
    Lark,
    Literal,
    Regex,
    Repeat,
    Text,
    Token,
    Until,
)

# One blank or one line break between two tokens: a model cannot write whitespace until its limit.
_BLANKS: Final = {"whitespace_pattern": r"[\x20\x0A]"}
# What is forced is not followed to its end at once: `a{1000000000}` would hold the engine.
_OPTIONS: Final = '%llguidance {"no_forcing": true}\n'
_ANYTHING: Final = "/(?s:.*)/"


def llguidance_grammar(grammar: Grammar, lark_of_gbnf: Callable[[str], str]) -> str:
    """Write the grammar; raises InvalidGrammar for a part that cannot be written.

    `lark_of_gbnf` translates the one dialect that llguidance does not read itself. The format:
    https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
    """
    writer = _Writer(lark_of_gbnf)
    start = writer.write(grammar)
    rules = "".join(f"{rule}\n" for rule in (f"start: {start}", *writer.rules))
    answer = {"name": "answer", "lark_grammar": _OPTIONS + rules}
    whole = {"grammars": [answer, *writer.parts]}
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))


def llguidance_lark(grammar: Grammar, lark_of_gbnf: Callable[[str], str]) -> str:
    """Write the grammar as one text in Lark's syntax, for engines that pass on no JSON (vLLM).

    Raises InvalidGrammar as llguidance_grammar does.
    """
    writer = _WholeWriter(lark_of_gbnf)
    start = writer.write(grammar)
    rules = (f"start: {start}", *writer.rules, *writer.parts)
    return _OPTIONS + "".join(f"{rule}\n" for rule in rules)


class _Writer:
    """Writes one grammar; what a client wrote is a grammar of its own, named by the others."""

    def __init__(self, lark_of_gbnf: Callable[[str], str]) -> None:
        self.rules: list[str] = []
        self.parts: list[Any] = []
        self._lark_of_gbnf = lark_of_gbnf

    def write(self, node: Grammar) -> str:
        match node:
            case Literal(text):
                return _string(text)
            case Token(id):
                return f"<[{id}]>"
            case Text(max_tokens):
                limit = "" if max_tokens is None else f"[max_tokens={max_tokens}]"
                return self._rule(limit, _ANYTHING)
            case Until(mark):
                return self._rule("[lazy]", f"{_ANYTHING} {_string(mark)}")
            case Concatenation(parts):
                return f"({' '.join(map(self.write, parts))})" if parts else '""'
            case Alternation(options):
                return self._choice(options)
            case Repeat(part, least, most):
                return f"({self.write(part)}){{{least},{'' if most is None else most}}}"
            case _:
                return self._part(node)

    def _choice(self, options: tuple[Grammar, ...]) -> str:
        """Many texts are one terminal, which costs less than as many rules."""
        if all(isinstance(option, Literal) and option.text for option in options):
            self.rules.append(f"T{len(self.rules)}: {' | '.join(map(self.write, options))}")
            return f"T{len(self.rules) - 1}"
        return f"({' | '.join(map(self.write, options))})"

    def _rule(self, attributes: str, body: str) -> str:
        self.rules.append(f"r{len(self.rules)}{attributes}: {body}")
        return f"r{len(self.rules) - 1}"

    def _part(self, node: Grammar) -> str:
        name = f"p{len(self.parts)}"
        self.parts.append({"name": name, **self._written(node)})
        return f"@{name}"

    def _written(self, node: Grammar) -> dict[str, Any]:
        match node:
            case JsonSchema(schema):
                return {"json_schema": {**json.loads(schema), "x-guidance": _BLANKS}}
            case Regex(pattern):
                return {"lark_grammar": f"start: {_regex(pattern)}"}
            case Lark(text):
                check_lark(text)
                return {"lark_grammar": text}
            case Gbnf(text):
                return {"lark_grammar": self._lark_of_gbnf(text)}
            case _:
                raise InvalidGrammar(f"this engine's grammars have no {type(node).__name__}")


class _WholeWriter(_Writer):
    """What a client wrote is a grammar of its own within the text."""

    def _part(self, node: Grammar) -> str:
        name = f"p{len(self.parts)}"
        written = self._written(node)
        if "json_schema" in written:
            inner = f"%json {json.dumps(written['json_schema'], ensure_ascii=False)}"
        else:
            inner = f"%lark {{\n{embeddable(written['lark_grammar'])}\n}}"
        self.parts.append(f"{name}: {inner}")
        return name


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _regex(pattern: str) -> str:
    """The pattern between slashes, of which it can hold none."""
    if len(pattern) > MAX_REGEX:
        raise InvalidGrammar(f"the pattern is longer than {MAX_REGEX} characters")
    text, escaped = [], False
    for char in pattern:
        text.append("\\/" if char == "/" and not escaped else char)
        escaped = char == "\\" and not escaped
    return f"/{''.join(text)}/" if text else '""'
