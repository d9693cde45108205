"""What commands write for a person: wrapped at the terminal's width, commands as a new shell
finds them."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Final, TextIO

WIDEST: Final = 100
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"


def width_of(stream: TextIO) -> int:
    """How wide lines may be: what is no terminal gets them at their widest."""
    is_told = stream.isatty() or "COLUMNS" in os.environ
    return min(shutil.get_terminal_size().columns, WIDEST) if is_told else WIDEST


def wrapped(text: str, width: int, begin: str = "", rest: str = "") -> list[str]:
    """The text in lines; `rest` begins all but the first. Commands in backticks stay whole."""
    whole = re.sub("`[^`]*`", lambda found: found[0].replace(" ", _NO_BREAK), text)
    lines = textwrap.wrap(
        whole,
        width,
        initial_indent=begin,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]


def program() -> str:
    """How a new shell in this folder starts `harmonium`: one that has activated nothing."""
    own = Path(sys.prefix) / "bin" / "harmonium"
    if not own.exists():
        return "harmonium"
    folders = os.environ.get("PATH", "").split(os.pathsep)
    if os.environ.get("VIRTUAL_ENV"):  # activated here, not there
        folders = [each for each in folders if Path(each) != own.parent]
    found = shutil.which("harmonium", path=os.pathsep.join(folders))
    if found and Path(found).resolve() == own.resolve():
        return "harmonium"
    here = Path.cwd()
    return str(own.relative_to(here)) if own.is_relative_to(here) else str(own)


def runnable(text: str) -> str:
    """The text with commands such as `harmonium chat` as a new shell finds them."""
    return text.replace("`harmonium ", f"`{program()} ")
