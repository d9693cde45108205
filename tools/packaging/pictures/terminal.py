"""Draw docs/pictures/start.svg: `harmonium serve` in a real terminal, from its own output."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text
from serving import COLUMNS, serving

OUT = Path(__file__).parents[3] / "docs" / "pictures" / "start.svg"
_FONT_OF_A_HOST = re.compile(r"@font-face \{[^}]*\}\s*")  # a picture asks nobody for anything


def drawn(shown: str) -> str:
    """What a terminal showed, as SVG."""
    lines = shown.replace("\r\n", "\n").strip().split("\n")
    plain = "\n".join(line.rpartition("\r\x1b[2K")[2] for line in lines)  # without its progress
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"\x1b[1m$\x1b[0m harmonium serve\n{plain}"))
    svg = console.export_svg(title="harmonium serve", unique_id="start")
    return _FONT_OF_A_HOST.sub("", svg).replace("Fira Code, monospace", "ui-monospace, monospace")


if __name__ == "__main__":
    # No model is named, as in the command that is shown.
    with serving(more={"NIM_MODEL_NAME": ""}) as (_, shown):
        OUT.write_text(drawn(shown), encoding="utf-8")
