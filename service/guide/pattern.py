"""A pattern of JSON Schema, which is ECMAScript's, as the engine reads it: in Rust's syntax."""

from __future__ import annotations


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
