"""Citations: what `【0†L8-L9】` in an answer means, by the pages that the tool `browser` showed.

gpt-oss names a page by the cursor under which it was shown. Every browser in the format of
gpt-oss's published one begins a result with a line of cursor, title and URL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_SHOWN: Final = re.compile(r"\[(\d+)\] (.*) \((https?://[^\s]+)\)\n")
_CITED: Final = re.compile(r"【(\d+)†([^†】]+)(?:†[^†】]+)?】")
_PLACE: Final = re.compile(r"L(\d+)(?:-L?(\d+))?")
_LINE: Final = re.compile(r"^L(\d+): ?(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Citation:
    """Where in a text, in characters, a page is cited."""

    start: int
    end: int
    url: str
    title: str
    quoted: str  # the lines that are cited; empty where none of them was shown

    @property
    def fields(self) -> dict[str, int | str]:
        """As OpenAI's APIs name them."""
        place = {"start_index": self.start, "end_index": self.end}
        return {**place, "url": self.url, "title": self.title}


@dataclass(slots=True)
class _Shown:
    """A page, or a part of it, as the model read it."""

    url: str
    title: str
    result: str
    lines: dict[int, str] | None = None  # read once something cites them

    def quoted(self, place: str) -> str:
        if (found := _PLACE.match(place)) is None:
            return ""
        if self.lines is None:
            self.lines = {int(number): text for number, text in _LINE.findall(self.result)}
        first, last = int(found[1]), int(found[2] or found[1])
        return " ".join(text for at, text in self.lines.items() if first <= at <= last).strip()


class Sources:
    """The pages that a browser showed in one answer."""

    def __init__(self) -> None:
        self._pages: dict[str, _Shown] = {}

    def add(self, tool: str, result: str) -> None:
        """Take a call's result; those of other tools show no page."""
        if tool.startswith("browser") and (found := _SHOWN.match(result)):
            cursor, title, url = found.groups()
            self._pages[cursor] = _Shown(url, title, result)

    def cited(self, text: str) -> list[Citation]:
        """The citations in a text, in order; those of no page are left out."""
        if not self._pages:
            return []
        return [
            Citation(*found.span(), page.url, page.title, page.quoted(found[2]))
            for found in _CITED.finditer(text)
            if (page := self._pages.get(found[1])) is not None
        ]
