"""Which tools are too alike to be offered together, or to be what a request does not mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_GENERIC = frozenset("get current search set create list send book find".split())


def is_rival(name: str, other: str) -> bool:
    """Say whether a request for one tool could mean the other."""
    return _share_group("rivals", name, other) or bool(_nouns(name) & _nouns(other))


def is_near(name: str, other: str) -> bool:
    """Say whether one tool might do for a request that is meant for the other."""
    return is_rival(name, other) or _share_group("near", name, other)


def _share_group(section: str, name: str, other: str) -> bool:
    return any({name, other} <= group for group in _groups()[section])


@cache
def _groups() -> Mapping[str, tuple[frozenset[str], ...]]:
    text = Path(__file__).with_name("alike.txt").read_text()
    blocks = (block.splitlines() for block in re.split(r"^= ", text, flags=re.MULTILINE)[1:])
    return {
        head: tuple(frozenset(line.split()) for line in lines if line) for head, *lines in blocks
    }


def _nouns(name: str) -> set[str]:
    return set(name.replace("-", "_").lower().split("_")) - _GENERIC
