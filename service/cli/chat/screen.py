"""How an answer looks on a terminal: thoughts dimmed, markdown set paragraph by paragraph."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

from service.cli.chat.client import Answer, AnswerPiece

_FENCES = ("```", "~~~")
_DRAWN_PER_S = 12


class Screen:
    """Writes one answer as it comes; `finish` says how fast it was."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rest = ""  # the last paragraph, which may still grow
        self._live: Live | None = None
        self._is_thinking = False
        self._began = time.monotonic()
        self._first_s: float | None = None

    def show(self, delta: AnswerPiece) -> None:
        """Show a piece of the answer: thoughts at once, markdown paragraph by paragraph."""
        if self._first_s is None:
            self._first_s = time.monotonic() - self._began
        if delta.kind == "reasoning":
            self._is_thinking = True
            self._console.print(Text(delta.text, style="dim"), end="", soft_wrap=True)
            return
        if self._is_thinking:
            self._is_thinking = False
            self._console.print("\n")
        self._grow(delta.text)

    def finish(self, answer: Answer, note: str = "") -> None:
        """Set what is left, the calls, and a line of figures."""
        if self._is_thinking:
            self._console.print()
        self._settle(self._rest)
        for call in answer.tool_calls:
            function = call["function"]
            self._console.print(
                Text(f"calls {function['name']}({function['arguments']})", style="cyan")
            )
        self._console.print(
            Text(" · ".join([*self._figures(answer), *filter(None, [note])]), "dim")
        )

    def _grow(self, text: str) -> None:
        """Print whole paragraphs for good; draw the last one anew until it is whole."""
        self._rest += text
        whole, self._rest = split_whole(self._rest)
        if whole:
            self._settle(whole)
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
            figures.append(f"first after {self._first_s * 1000:.0f} ms")
        if num_tokens:
            figures.append(f"{answer.usage['prompt_tokens']} + {num_tokens} tokens")  # type: ignore[index]
        if answer.finish_reason == "length":
            figures.append("cut off at the token limit")
        return figures


def split_whole(text: str) -> tuple[str, str]:
    """Split markdown before its last paragraph; what a code fence holds is never split."""
    is_code, at, start = False, 0, 0
    for line in text.splitlines(keepends=True):
        at += len(line)
        if line.lstrip().startswith(_FENCES):
            is_code = not is_code
        if not is_code and not line.strip():
            start = at
    return text[:start], text[start:]
