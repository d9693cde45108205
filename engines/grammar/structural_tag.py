"""A grammar in the dialect of xgrammar: its structural tag, as JSON."""

from __future__ import annotations

import json
from typing import Any, Final

from engines.errors import InvalidGrammar
from engines.grammar.tree import (
    Alternation,
    Concatenation,
    Gbnf,
    Grammar,
    JsonSchema,
    Literal,
    Regex,
    Repeat,
    Text,
    Token,
    Until,
)

MAX_BLANKS: Final = 1  # between two tokens of JSON: a model cannot write whitespace until its limit

Tag = dict[str, Any]


def structural_tag(grammar: Grammar) -> str:
    """Write the tag; raises InvalidGrammar for Lark, which xgrammar does not read.

    The format: https://xgrammar.mlc.ai/docs/structural_tag/structural_tag
    """
    tag = {"type": "structural_tag", "format": _format(grammar)}
    return json.dumps(tag, ensure_ascii=False, separators=(",", ":"))


def _format(node: Grammar) -> Tag:
    match node:
        case Literal(text):
            return {"type": "const_string", "value": text}
        case Token(id):
            return {"type": "token", "token": id}
        case Text(max_tokens):
            limit = {} if max_tokens is None else {"max_tokens": max_tokens}
            return {"type": "any_text", **limit}
        case Until(mark):
            return {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": mark}
        case JsonSchema(schema):
            return {
                "type": "json_schema",
                "json_schema": json.loads(schema),
                "max_whitespace_cnt": MAX_BLANKS,
            }
        case Regex(pattern):
            return {"type": "regex", "pattern": pattern}
        case Gbnf(text):
            return {"type": "grammar", "grammar": text}
        case Concatenation(parts):
            return {"type": "sequence", "elements": [_format(part) for part in parts]}
        case Alternation(options):
            return {"type": "or", "elements": [_format(option) for option in options]}
        case Repeat(part, least, most):
            return _repeat(_format(part), least, most)
        case _:
            raise InvalidGrammar(f"this engine's grammars have no {type(node).__name__}")


def _repeat(content: Tag, least: int, most: int | None) -> Tag:
    names = {(0, 1): "optional", (0, None): "star", (1, None): "plus"}
    name = names.get((least, most))
    if name is not None:
        return {"type": name, "content": content}
    return {"type": "repeat", "min": least, "max": -1 if most is None else most, "content": content}
