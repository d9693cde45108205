"""The options that every engine of the step loop has under the same names, and their checks."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from engines.errors import EngineStartError

_COUNTS: Final = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "num_kv_blocks",
    "num_threads",
    "max_num_waiting",
)


class StepOptions(Protocol):
    """What an engine's options have beside the counts."""

    @property
    def model_dir(self) -> Path: ...

    @property
    def vocabulary_path(self) -> Path | None:
        """The file with the tokens' bytes; None: the engine takes no grammars."""

    @property
    def memory_fraction(self) -> float:
        """The share of a memory that the engine may take."""

    @property
    def max_token_gap_ms(self) -> float | None:
        """The longest gap between two tokens of a stream that prefill beside it may make."""

    @property
    def grammar_timeout_s(self) -> float:
        """How long a grammar may take to compile, in seconds."""


def seconds_of(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def check_numbers(options: StepOptions) -> None:
    """Raise EngineStartError naming a number that no engine can run with."""
    for name in _COUNTS:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise EngineStartError(f"{name} is {value}; use 1 or more")
    if not 0 < options.memory_fraction <= 1:
        raise EngineStartError(
            f"memory_fraction is {options.memory_fraction}; use more than 0, at most 1"
        )
    if options.max_token_gap_ms is not None and options.max_token_gap_ms <= 0:
        raise EngineStartError(
            f"max_token_gap_ms is {options.max_token_gap_ms}; use more than 0, or leave it out"
        )
    if options.grammar_timeout_s <= 0:
        raise EngineStartError(f"grammar_timeout_s is {options.grammar_timeout_s}; use more than 0")
