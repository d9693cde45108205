"""The tool `browser`: `search`, `open` and `find`, as gpt-oss's published one shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from parts.sandbox.guest.browser.network import CannotRead, PageRequest, read
from parts.sandbox.guest.browser.page import (
    ShownPage,
    page_of_html,
    page_of_text,
    plain,
    without_links,
)
from parts.sandbox.guest.browser.search import search
from parts.sandbox.guest.frame import serve

VIEW_CHARACTERS = 4000  # about 1,024 tokens, of a page that is shown
_MOST_PAGES = 64
_MOST_FOUND = 50
_LINES_FOUND = 4
_SOURCE = "view-source:"


class Browser:
    """The pages of one answer."""

    def __init__(self) -> None:
        self._stack: list[ShownPage] = []

    def answer(self, asked: str) -> None:
        """Print what a call gives; `asked` is a line of our own, then the model's arguments."""
        head, _, text = asked.partition("\n")
        request = json.loads(head)
        try:
            print(self._call(request["action"], text, request["service"]), end="")
        except CannotRead as error:
            print(f"Error: {error}", end="")
        except Exception as error:  # a page that our reader cannot take
            print(f"Error: the page cannot be shown ({type(error).__name__})", end="")

    def _call(self, action: str, text: str, service: Mapping[str, str]) -> str:
        given = _arguments(text)
        if action == "search":
            query = given.get("query")
            if not isinstance(query, str) or not query.strip():
                raise CannotRead("search needs a query")
            return self._show(search(service, query, _number(given, "topn", 10)))
        if action == "find":
            return self._show(self._found(given))
        if action == "open":
            page, line = self._opened(given)
            return self._show(page, max(line, 0), _number(given, "num_lines"))
        raise CannotRead(f"browser has search, open and find, not {plain(action)[:50]}")

    def _opened(self, given: Mapping[str, Any]) -> tuple[ShownPage, int]:
        """A page, and the line from which it is shown."""
        id, line = given.get("id", -1), _number(given, "loc")
        is_source = given.get("view_source") is True
        if isinstance(id, str) and not id.strip().isdecimal():
            return _page(id, is_source=is_source), line
        page = self._at(_number(given, "cursor"))
        if (number := _number(given, "id")) < 0:
            return (_page(page.url, is_source=True) if is_source else page), line
        url = page.links.get(str(number))
        if url is None:
            raise CannotRead(f"the page has no link {number}")
        if line < 0 and str(number) in page.starts:
            line = max(page.starts[str(number)] - _LINES_FOUND, 0)
        known = None if is_source else next((p for p in self._stack if p.url == url), None)
        return known or _page(url, is_source=is_source), line

    def _found(self, given: Mapping[str, Any]) -> ShownPage:
        page, pattern = self._at(_number(given, "cursor")), given.get("pattern")
        if not isinstance(pattern, str) or not pattern:
            raise CannotRead("find needs a pattern")
        if page.is_result:
            raise CannotRead("find does not work on results of search or find")
        shown = plain(pattern).lower()
        found = ShownPage(page.url, f"Find results for text: `{shown}` in `{page.title}`", "")
        found.is_result = True
        chunks: list[str] = []
        lines, at = without_links(page.lines), 0
        while at < len(lines) and len(chunks) < _MOST_FOUND:
            if pattern.lower() not in lines[at].lower():
                at += 1
                continue
            number = str(len(chunks))
            found.links[number], found.starts[number] = page.url, at
            text = "\n".join(lines[at : at + _LINES_FOUND])
            chunks.append(f"# 【{number}†match at L{at}】\n{text}")
            at += _LINES_FOUND
        found.text = "\n\n".join(chunks) or f"No `find` results for pattern: `{shown}`"
        return found

    def _at(self, cursor: int) -> ShownPage:
        if not self._stack:
            raise CannotRead("no page is open")
        if not -1 <= cursor < len(self._stack):
            raise CannotRead(f"cursors are 0 to {len(self._stack) - 1}, not {cursor}")
        return self._stack[cursor]

    def _show(self, page: ShownPage, line: int = 0, num_lines: int = -1) -> str:
        """A page from a line on; it gets the next cursor."""
        lines = page.lines
        if line >= len(lines):
            raise CannotRead(f"the page has lines 0 to {len(lines) - 1}, not {line}")
        if len(self._stack) >= _MOST_PAGES:
            raise CannotRead(f"{_MOST_PAGES} pages are open; answer with what they say")
        shown: list[str] = []
        num_characters = 0
        for number, text in enumerate(lines[line:], line):
            numbered = f"L{number}: {text}"
            num_characters += len(numbered) + 1
            is_over = len(shown) >= num_lines if num_lines > 0 else num_characters > VIEW_CHARACTERS
            if shown and is_over:
                break
            shown.append(numbered)
        cursor = len(self._stack)
        self._stack.append(page)
        head = f"[{cursor}] {page.title}" + (f" ({page.url})" if page.url else "")
        bar = f"**viewing lines [{line} - {line + len(shown) - 1}] of {len(lines) - 1}**"
        return "\n".join((head, bar, "", *shown))


def _page(url: str, *, is_source: bool) -> ShownPage:
    is_source = is_source or url.startswith(_SOURCE)
    found = read(PageRequest(url.strip().removeprefix(_SOURCE)))
    if found.is_html and not is_source:
        return page_of_html(found.url, found.text)
    return page_of_text(found.url, found.text)


def _arguments(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise CannotRead("the arguments are not JSON") from None
    if not isinstance(given, dict):
        raise CannotRead("the arguments are not a JSON object")
    return given


def _number(given: Mapping[str, Any], name: str, default: int = -1) -> int:
    """An argument that is a number, which the model may have written as a string."""
    value = given.get(name, default)
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise CannotRead(f"{name} is not a number") from None


def main() -> None:
    """Answer requests until there are no more."""
    serve(Browser().answer)


if __name__ == "__main__":
    main()
