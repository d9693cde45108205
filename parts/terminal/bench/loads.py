"""The loads by name, and how a command line asks for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

from parts.terminal.bench.fields import Fields
from parts.terminal.bench.search import Rate
from parts.terminal.bench.traffic import (
    Agents,
    Beside,
    BulkLoad,
    Guided,
    Long,
    Poisson,
    Rag,
    Streams,
    UserLoad,
)

LOADS: Final[dict[str, Callable[..., UserLoad | Rate]]] = {
    "streams": Streams,
    "poisson": Poisson,
    "agents": Agents,
    "bulk": BulkLoad,
    "rag": Rag,
    "long": Long,
    "beside": Beside,
    "guided": Guided,
    "fields": Fields,
    "rate": Rate,
}


@dataclass(frozen=True, slots=True)
class Planned:
    """A load and how it was asked for."""

    text: str
    load: UserLoad | Rate


def planned(text: str) -> Planned:
    """Return the load that `name[=number][,field=value]...` names; ValueError says what is
    wrong."""
    first, *others = text.split(",")
    name, _, number = first.partition("=")
    if name not in LOADS:
        raise ValueError(f"{name!r} is no load; there are {', '.join(LOADS)}")
    make: Any = LOADS[name]
    kinds = {each.name: int if each.type == "int" else float for each in fields(make)}
    pairs = [(next(iter(kinds)), number)] if number else []
    pairs += [(key, value) for key, _, value in (other.partition("=") for other in others)]
    for key, _ in pairs:
        if key not in kinds:
            raise ValueError(f"{text}: {name} has no {key!r}; it has {', '.join(kinds)}")
    try:
        return Planned(text, make(**{key: kinds[key](value) for key, value in pairs}))
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from None
