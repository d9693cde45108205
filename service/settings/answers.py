"""What to do here instead of what another server has: a flag, a command, a variable, a route."""

from __future__ import annotations

from typing import Literal

from engines.parts import facets

Kind = Literal["flags", "commands", "variables", "routes"]


class Answers:
    """ANSWERS of parts/<name>/answers.py: what a part knows of other servers."""

    def of(self, kind: Kind, name: str) -> str:
        """What to do instead; empty where that is not known."""
        raise NotImplementedError


def answer(kind: Kind, name: str) -> str:
    """What to do instead, in a sentence; empty where no part knows."""
    known = (answers.of(kind, name) for answers in facets("answers", Answers).values())
    return next(filter(None, known), "")
