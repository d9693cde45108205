"""Commands that are imported when they are typed: a list of them imports none."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Final

import click

# The sections of `harmonium --help`.
SERVE: Final = "Serve and ask"
LOOK: Final = "Look"
MEASURE: Final = "Measure"
FILES: Final = "Files in advance"
OPERATE: Final = "Keys and shell"
NIM: Final = "For NIM's scripts"
SECTIONS: Final = (SERVE, LOOK, MEASURE, FILES, OPERATE, NIM)


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command is, and its line in the list; COMMANDS of parts/<name>/commands.py has
    these."""

    module: str
    name: str
    section: str
    text: str  # at most 55 letters: it fits a terminal of 80 columns

    def load(self) -> click.Command:
        loaded: click.Command = getattr(import_module(self.module), self.name)
        return loaded
