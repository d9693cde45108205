"""Harmony under the names of ChatFormat (service/chat_format.py)."""

from __future__ import annotations

from collections.abc import Mapping

from service.conversation import ReasoningEffort
from service.harmony.grammar import (
    answer_grammar,
    builtin_call_grammar,
    call_grammar,
    final_grammar,
)
from service.harmony.header import recipients_of
from service.harmony.parse import Parser
from service.harmony.render import last_final, render, render_result, thoughts_turn
from service.harmony.transcript import turns_of
from service.harmony.vocabulary import (
    CALL,
    STOP_TOKEN_IDS,
    WHOLE_TEXTS,
    TokenDecoder,
    decode_bytes,
    decode_marked,
    encode_marked,
    encode_text,
    is_ordinary,
    load,
    name_of,
    write_vocabulary,
)
from service.harmony.vocabulary import LONGEST_TOKEN_CHARS as longest_token_chars

__all__ = [
    "answer_grammar",
    "builtin_call_grammar",
    "call_grammar",
    "call_token_id",
    "decode_bytes",
    "decode_marked",
    "decoder",
    "efforts",
    "encode_marked",
    "encode_text",
    "final_grammar",
    "is_ordinary",
    "last_final",
    "load",
    "longest_token_chars",
    "name_of",
    "num_opening_tokens",
    "parser",
    "recipients_of",
    "render",
    "render_result",
    "stop_token_ids",
    "thoughts_turn",
    "turns_of",
    "whole_texts",
    "write_vocabulary",
]

parser = Parser
decoder = TokenDecoder
stop_token_ids = STOP_TOKEN_IDS
call_token_id = CALL
whole_texts = WHOLE_TEXTS
num_opening_tokens = 2  # `<|start|>assistant`

# gpt-oss knows three levels; the others of the published schemas mean the nearest of them.
efforts: Mapping[str | None, ReasoningEffort] = {
    None: "medium",
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
