"""Harmony under the names of ChatFormat (service/chat_format.py)."""

from __future__ import annotations

from service.harmony.grammar import (
    answer_grammar,
    builtin_call_grammar,
    call_grammar,
    end_of_reasoning,
    final_grammar,
)
from service.harmony.header import RECIPIENTS
from service.harmony.parse import Parser as parser
from service.harmony.render import first_reasoning
from service.harmony.render import render as prompt_of
from service.harmony.render import render_result as result_of_call
from service.harmony.transcript import turns_of
from service.harmony.vocabulary import LONGEST_TOKEN_CHARS as longest_token_chars
from service.harmony.vocabulary import STOP_TOKEN_IDS as stop_token_ids
from service.harmony.vocabulary import (
    decode_bytes,
    decode_marked,
    encode_marked,
    encode_text,
    is_ordinary,
    name_of,
    write_vocabulary,
)

__all__ = [
    "answer_grammar",
    "builtin_call_grammar",
    "builtins",
    "call_grammar",
    "decode_bytes",
    "decode_marked",
    "encode_marked",
    "encode_text",
    "end_of_reasoning",
    "final_grammar",
    "first_reasoning",
    "is_ordinary",
    "longest_token_chars",
    "name_of",
    "parser",
    "prompt_of",
    "result_of_call",
    "stop_token_ids",
    "turns_of",
    "write_vocabulary",
]

builtins = frozenset(RECIPIENTS)
