"""Parts: optional features, one folder of parts/ each. The core imports none and finds them here.

The files of a part say what it adds. Each floor of the core that can be added to asks for
one file, and says what has to be in it; a process imports no other file of a part.
docs/architecture.md lists the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartAbout:
    """A part, described for people."""

    title: str
    text: str  # one sentence
    docs: str  # its page


@cache
def folders() -> dict[str, Path]:
    """Every part by name: a folder of parts/ with an about.py."""
    package = find_spec("parts")
    roots = package.submodule_search_locations if package is not None else None
    found = sorted(path.parent for root in roots or () for path in Path(root).glob("*/about.py"))
    return {folder.name: folder for folder in found}


@cache
def facets(file: str, kind: type[T]) -> dict[str, T]:
    """What parts have in one of their files, by part: an object of this kind, or a subclass."""
    return {name: found for name in having(file) if (found := facet(name, file, kind)) is not None}


def facet(name: str, file: str, kind: type[T]) -> T | None:
    """What a part has in one of its files; None if it has no such file."""
    if name not in having(file):
        return None
    found: T = getattr(import_module(f"parts.{name}.{file}"), file.upper())
    is_one = issubclass(found, kind) if isinstance(found, type) else isinstance(found, kind)
    if not is_one:
        raise TypeError(f"parts/{name}/{file}.py: {file.upper()} is not a {kind.__name__}")
    return found


def having(file: str) -> list[str]:
    """The parts that have a file of this name; nothing is imported."""
    return [name for name, folder in folders().items() if (folder / f"{file}.py").exists()]
