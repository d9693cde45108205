"""The phrasings of phrases.txt and its like, by section."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Phrases(NamedTuple):
    """One section's phrasings on both sides of the split, in the order of the file."""

    train: tuple[str, ...]
    heldout: tuple[str, ...]


@cache
def sections(file: str = "phrases.txt") -> Mapping[str, Phrases]:
    """Read every section of a file."""
    text = Path(__file__).with_name(file).read_text()
    blocks = re.split(r"^= ", text, flags=re.MULTILINE)[1:]
    return dict(_parse(block.splitlines()) for block in blocks)


def phrases(section: str, file: str = "phrases.txt") -> Phrases:
    """Return a section; KeyError when there is none of this name."""
    return sections(file)[section]


def _parse(lines: Sequence[str]) -> tuple[str, Phrases]:
    train = (line for line in lines[1:] if line.startswith("|"))
    heldout = (line[2:] for line in lines[1:] if line.startswith("~ "))
    return lines[0], Phrases(tuple(_items(train)), tuple(_items(heldout)))


def _items(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield from line[1:-1].split("|")
