"""Citations: what `【0†L8-L9】` in an answer means, by the pages that the tool `browser` showed.

gpt-oss names a page by the cursor under which it was shown. Every browser in the format of
gpt-oss's published one begins a result with a line of cursor, title and URL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_SHOWN: Final = re.compile(r"\[(\d+)\] (.*) \((https?://[^\s]+)\)\n")
_CITED: Final = re.compile(r"【(\d+)†[^†】]+(?:†[^†】]+)?】")


@dataclass(frozen=True, slots=True)
class Citation:
    """Where in a text, in characters, a page is cited."""

    start: int
    end: int
    url: str
    title: str

    @property
    def fields(self) -> dict[str, int | str]:
        """As OpenAI's APIs name them."""
        place = {"start_index": self.start, "end_index": self.end}
        return {**place, "url": self.url, "title": self.title}


class Sources:
    """The pages that a browser showed in one answer."""

    def __init__(self) -> None:
        self._pages: dict[str, tuple[str, str]] = {}

    def add(self, tool: str, result: str) -> None:
        """Take a call's result; those of other tools show no page."""
        if tool.startswith("browser") and (found := _SHOWN.match(result)):
            cursor, title, url = found.groups()
            self._pages[cursor] = (url, title)

    def cited(self, text: str) -> list[Citation]:
        """The citations in a text, in order; those of no page are left out."""
        if not self._pages:
            return []
        return [
            Citation(*found.span(), *self._pages[found[1]])
            for found in _CITED.finditer(text)
            if found[1] in self._pages
        ]
