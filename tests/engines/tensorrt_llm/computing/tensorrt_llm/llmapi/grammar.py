"""Grammars by the llguidance that the library pins."""

from __future__ import annotations

import llguidance
import llguidance.torch
import torch
from transformers import AutoTokenizer


class Matchers:
    """Makes a matcher for each request; the vocabulary is read once."""

    def __init__(self, tokenizer: str, vocab_size: int) -> None:
        read = AutoTokenizer.from_pretrained(tokenizer)
        self._vocab_size = vocab_size
        self._tokenizer = llguidance.LLTokenizer(
            read.backend_tokenizer.to_str(), n_vocab=vocab_size, eos_token=read.eos_token_id
        )

    def of(self, grammar: str) -> Matcher:
        """Compile Lark's text; raises ValueError with the matcher's words."""
        text = llguidance.LLMatcher.grammar_from_lark(grammar)
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0)
        _check(matcher)
        return Matcher(matcher, self._vocab_size)


class Matcher:
    """Where one answer is in its grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._mask = llguidance.torch.allocate_token_bitmask(1, vocab_size)

    def masked(self, logits: torch.Tensor) -> torch.Tensor:
        """Leave only what may follow."""
        if self._matcher.is_stopped():
            return logits
        llguidance.torch.fill_next_token_bitmask(self._matcher, self._mask, 0)
        _check(self._matcher)
        words = self._mask[0].to(torch.int64) & 0xFFFFFFFF
        bits = (words[:, None] >> torch.arange(32)) & 1
        allowed = bits.flatten()[: logits.shape[0]].bool()
        return logits.masked_fill(~allowed, -torch.inf)

    def accept(self, token: int) -> None:
        """Go on by a token; raises ValueError if it may not follow."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)
            _check(self._matcher)


def _check(matcher: llguidance.LLMatcher) -> None:
    if error := matcher.get_error():
        raise ValueError(f"LLGuidance matcher error: {error}")
