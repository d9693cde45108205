"""What we call of llguidance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from engines.errors import InvalidGrammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

STACK: Final = 64 * 1024**2  # a chain of references goes as deep as it is long
_LIMITS: Final[dict[str, Any]] = {
    "max_items_in_row": 5_000,  # an object of 1,000 optional properties needs 4,000
    "step_lexer_fuel": 50_000,
    "max_lexer_states": 50_000,  # of 1 to 2 kB
}


def compiled(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Compile a grammar; raises InvalidGrammar with the library's reason."""
    import llguidance

    try:
        limits = llguidance.LLParserLimits(**_LIMITS, verbose_errors=False)
    except TypeError:  # 0.7, which TensorRT-LLM pins, is never verbose
        limits = llguidance.LLParserLimits(**_LIMITS)
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise InvalidGrammar(readable(matcher.get_error()))
    return matcher


def readable(error: str) -> str:
    """The library's error in one line, without the piece of grammar that it draws."""
    lines = [line.strip() for line in error.splitlines() if "|" not in line[:7]]
    words = " ".join(line for line in lines if line and line.strip("^") and line[0] != "<")
    return words[:500] or "the grammar is too complex"
