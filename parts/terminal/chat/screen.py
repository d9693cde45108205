"""How an answer looks on a terminal: thoughts dimmed, code line by line, markdown by paragraphs."""

from __future__ import annotations

import re
import time
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from parts.terminal.client import Answer, AnswerPiece

_FENCES = ("```", "~~~")
_DRAWN_PER_S = 12
_MARGIN_ROWS = 4  # of the window, that a paragraph which is drawn again leaves free


class Screen:
    """Writes one answer as it comes; `finish` says how fast it was."""

    def __init__(self, console: Console, shows_thoughts: bool = True) -> None:
        self._console = console
        self._shows_thoughts = shows_thoughts
        self._rest = ""  # what may still grow: the last paragraph, or the last line of code
        self._language: str | None = None  # of the code that is written now
        self._live: Live | None = None
        self._is_thinking = False
        self._thoughts = WordWrap(console)
        self._began = time.monotonic()
        self._first_s: float | None = None

    def show(self, delta: AnswerPiece) -> None:
        """Show a piece of the answer: thoughts word by word, code line by line, markdown paragraph
        by paragraph."""
        if self._first_s is None:
            self._first_s = time.monotonic() - self._began
        if delta.kind == "reasoning":
            self._think(delta.text)
            return
        self._end_thoughts()
        self._rest += delta.text
        while self._take_code() or self._take_text():
            pass
        if self._language is None:
            self._draw()

    def _think(self, text: str) -> None:
        if not self._is_thinking and not self._shows_thoughts:
            self._console.print(Text("Thinking …", style="dim"))
        self._is_thinking = True
        if self._shows_thoughts:
            self._thoughts.write(text)

    def _end_thoughts(self) -> None:
        if self._is_thinking and self._shows_thoughts:
            self._thoughts.flush()
            self._console.print("\n")
        self._is_thinking = False

    def finish(self, answer: Answer, note: str = "") -> None:
        """Print the rest, the calls, and a line of figures."""
        self._end_thoughts()
        if self._language is None:
            self._settle(self._rest)
        elif self._rest:
            self._print_code(self._rest)
        for call in answer.tool_calls:
            function = call["function"]
            self._console.print(
                Text(f"calls {function['name']}({function['arguments']})", style="cyan")
            )
        self._console.print(
            Text(" · ".join([*self._figures(answer), *filter(None, [note])]), "dim")
        )

    def _take_code(self) -> bool:
        """Print the next whole line of code, or its end; return whether there was one."""
        if self._language is None:
            return False
        line, separator, rest = self._rest.partition("\n")
        if not separator:
            return False
        self._rest = rest
        if line.strip().startswith(_FENCES):
            self._language = None
            self._console.print()
        else:
            self._print_code(line)
        return True

    def _take_text(self) -> bool:
        """Print whole paragraphs for good, and what is too long to be drawn again; return whether
        code begins behind them."""
        if self._language is not None:
            return False
        text, fence, rest = split_at_fence(self._rest)
        if fence is not None:
            self._settle(text)
            self._language, self._rest = fence, rest
            return True
        whole, self._rest = split_whole(self._rest)
        if self._rest.count("\n") > self._console.height - _MARGIN_ROWS:
            more, _, self._rest = self._rest.rpartition("\n")
            whole += more
        if whole:
            self._settle(whole)
        return False

    def _print_code(self, line: str) -> None:
        code = Syntax(line, self._language or "text", background_color="default", word_wrap=True)
        self._console.print(Padding(code, (0, 2)))

    def _draw(self) -> None:
        """Draw the last paragraph again, until it is complete."""
        if self._live is None:
            self._live = Live(
                console=self._console, refresh_per_second=_DRAWN_PER_S, transient=True
            )
            self._live.start()
        self._live.update(Markdown(self._rest))

    def _settle(self, text: str) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if text.strip():
            self._console.print(Markdown(text))
            self._console.print()

    def _figures(self, answer: Answer) -> list[str]:
        figures = []
        num_tokens: Any = (answer.usage or {}).get("completion_tokens")
        if self._first_s is not None:
            seconds = time.monotonic() - self._began - self._first_s
            if num_tokens and num_tokens > 1 and seconds > 0:
                figures.append(f"{(num_tokens - 1) / seconds:.1f} tokens/s")
            figures.append(f"first token {self._first_s * 1000:.0f} ms")
        if num_tokens:
            figures.append(f"{answer.usage['prompt_tokens']:,} in, {num_tokens:,} out")  # type: ignore[index]
        if answer.finish_reason == "length":
            figures.append("cut off at the token limit")
        return figures


class WordWrap:
    """Writes text that comes in pieces, broken between words at the width of the terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._column = 0
        self._word = ""  # it may still grow

    def write(self, text: str) -> None:
        *parts, self._word = re.split(r"(\s)", self._word + text)
        for part in parts:
            self._put(part)

    def flush(self) -> None:
        self._put(self._word)
        self._word = ""

    def _put(self, part: str) -> None:
        if part == "\n":
            self._column = 0
        else:
            size = cell_len(part)
            if self._column and self._column + size > self._console.width:
                self._console.print()
                self._column = 0
                part = part.lstrip()
            self._column += cell_len(part)
        self._console.print(Text(part, style="dim"), end="", soft_wrap=True)


def split_at_fence(text: str) -> tuple[str, str | None, str]:
    """Split markdown at the line that begins code: what is before, its language, what is behind.

    The language is None where no code begins.
    """
    at = 0
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if bare.startswith(_FENCES) and line.endswith("\n"):
            return text[:at], bare.strip("`~").strip(), text[at + len(line) :]
        at += len(line)
    return text, None, ""


def split_whole(text: str) -> tuple[str, str]:
    """Split markdown before its last paragraph."""
    at = start = 0
    for line in text.splitlines(keepends=True):
        at += len(line)
        if not line.strip():
            start = at
    return text[:start], text[start:]
