"""A page as the model reads it: text in lines, with its links as `【id†text†host】`.

The form is that of gpt-oss's published browser, on which the models were trained.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

WIDTH = 80
_MOST_LINKS = 2000
_HIDDEN = frozenset(("script", "style", "noscript", "template", "svg", "math", "iframe", "head"))
_LINES = frozenset(("li", "tr", "dt", "dd"))
_PARTS = frozenset(
    ("article", "aside", "div", "footer", "form", "header", "main", "nav", "section")
)
_TEXTS = frozenset(("address", "blockquote", "dl", "figcaption", "figure", "ol", "p", "pre", "ul"))
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_BLOCKS = _LINES | _PARTS | _TEXTS | frozenset(("fieldset", "hr", "table")) | frozenset(_HEADINGS)
_LINK = re.compile(r"【\d+†([^†】]*)(?:†[^†】]*)?】")
_MARKS = str.maketrans({"【": "〖", "】": "〗", "\u200b": None})  # those of links are ours


@dataclass
class ShownPage:
    """A page that was shown, under a cursor."""

    url: str  # empty: results of a search
    title: str
    text: str
    links: dict[str, str] = field(default_factory=dict)
    is_result: bool = False  # of search or find: nothing is searched in it
    starts: dict[str, int] = field(default_factory=dict)  # of a link, the line that it means

    @cached_property
    def lines(self) -> list[str]:
        """The text, wrapped; it does not change after that."""
        return [
            part
            for line in self.text.split("\n")
            for part in (
                textwrap.wrap(line, WIDTH, replace_whitespace=False, drop_whitespace=False) or [""]
            )
        ]


def without_links(lines: list[str]) -> list[str]:
    """The same lines with the texts of their links alone; a link may end in the next line."""
    return _LINK.sub(_text_alone, "\n".join(lines)).split("\n")


def _text_alone(found: re.Match[str]) -> str:
    return found[1] + "\n" * (found[0].count("\n") - found[1].count("\n"))


def plain(text: str) -> str:
    """A text on one line, without marks of links."""
    return " ".join(text.translate(_MARKS).split())


def link(number: int, text: str, url: str, here: str) -> str:
    """A link, with its host where that is another."""
    host = urlsplit(url).netloc
    shown = plain(text).replace("†", "‡")
    return f"【{number}†{shown}】" if host == here else f"【{number}†{shown}†{host}】"


def page_of_text(url: str, text: str) -> ShownPage:
    """A page that is plain text, or that is shown as its source."""
    return ShownPage(url, urlsplit(url).netloc, f"\nURL: {url}\n{text.translate(_MARKS)}")


def page_of_html(url: str, html: str) -> ShownPage:
    """The text of a page in HTML."""
    reader = _Reader(url)
    reader.feed(html)
    reader.close()
    text = re.sub(r"[ \t]+\n", "\n", "".join(reader.pieces)).strip()
    text = re.sub(r"\n{3,}", "\n\n", text)
    title = plain("".join(reader.title)) or urlsplit(url).netloc
    return ShownPage(url, title, f"\nURL: {url}\n{text}", reader.links)


class _Reader(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._host = urlsplit(url).netloc
        self._hidden = 0  # elements open that are not shown
        self._in_title = False
        self._pre = 0
        self._anchor: tuple[str, int] | None = None  # its address; where its text begins
        self.pieces: list[str] = []
        self.title: list[str] = []
        self.links: dict[str, str] = {}
        self._numbers: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "title":
            self._in_title = True
        elif tag == "body":  # a head need not be closed
            self._hidden = 0
        elif tag in _HIDDEN:
            self._hidden += 1
        elif tag == "a" and given.get("href"):
            self._end_link()
            self._anchor = (str(given["href"]), len(self.pieces))
        elif tag == "br":
            self._put("\n")
        elif tag == "img" and (shown := given.get("alt") or given.get("title")):
            self._put(f"[Image: {plain(shown)}]")
        elif tag in ("td", "th"):
            if self.pieces and not self.pieces[-1].endswith((" ", "\n")):
                self._put(" ")
        elif tag in _BLOCKS:
            self._pre += tag == "pre"
            if tag not in _LINES:
                self._put("\n\n")
            elif not self.pieces or not self.pieces[-1].endswith("\n"):
                self._put("\n")
            self._put("  * " if tag == "li" else _HEADINGS.get(tag, ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in _HIDDEN:
            self._hidden = max(self._hidden - 1, 0)
        elif tag == "a":
            self._end_link()
        elif tag in _BLOCKS:
            self._pre -= tag == "pre" and self._pre > 0
            self._put("\n" if tag in _LINES else "\n\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
            return
        text = data.translate(_MARKS)
        if not self._pre:
            text = re.sub(r"\s+", " ", text)
            if not self.pieces or self.pieces[-1].endswith((" ", "\n")):
                text = text.lstrip()
        self._put(text)

    def close(self) -> None:
        super().close()
        self._end_link()

    def _put(self, text: str) -> None:
        if text and not self._hidden:
            self.pieces.append(text)

    def _end_link(self) -> None:
        """Join the pieces of a link, if it leads anywhere."""
        if self._anchor is None:
            return
        (address, begin), self._anchor = self._anchor, None
        text = "".join(self.pieces[begin:])
        url = self._target(address)
        if not text.strip() or url is None:
            return
        number = self._numbers.setdefault(url, len(self._numbers))
        self.links[str(number)] = url
        self.pieces[begin:] = [link(number, text, url, self._host)]

    def _target(self, address: str) -> str | None:
        if address.startswith("#"):
            return None
        try:
            url = urljoin(self._url, address.strip())
            is_web = urlsplit(url).scheme in ("http", "https") and urlsplit(url).netloc
        except ValueError:
            return None
        is_new = url not in self._numbers
        return None if not is_web or (is_new and len(self.links) >= _MOST_LINKS) else url
