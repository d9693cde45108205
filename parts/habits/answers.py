"""What to do here instead of what other servers have, and about paths of ours that are misspelt."""

from __future__ import annotations

from functools import cache
from typing import Final

from parts.habits.table import table
from service.settings.answers import Answers, Kind

# First parts of our routes: without /v1 the client's base URL lacks it.
_OURS: Final = ("/chat/completions", "/completions", "/responses", "/messages", "/models")


class _Habits(Answers):
    def of(self, kind: Kind, name: str) -> str:
        return _route(name) if kind == "routes" else by_name(kind).get(name, "")


@cache
def by_name(kind: Kind) -> dict[str, str]:
    return {name: said for said, names in table(kind).items() for name in names}


def _route(path: str) -> str:
    if path.startswith("/v1/v1/"):
        return f"Use {path[3:]}: the client adds /v1 to its base URL."
    if any(_is_below(path, ours) for ours in _OURS):
        return f"Use /v1{path}: the client's base URL ends in /v1."
    found = (said for known, said in by_name("routes").items() if _is_below(path, known))
    return next(found, "")


def _is_below(path: str, known: str) -> bool:
    return path == known or path.startswith(f"{known}/")


ANSWERS: Final = _Habits()
