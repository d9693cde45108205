"""Words of errors that clients of Anthropic's API know."""

from __future__ import annotations


def too_long(number: str, most: int) -> str:
    """The words by which clients of this API know that a prompt does not fit."""
    return f"prompt is too long: {number} tokens > {most} maximum"
