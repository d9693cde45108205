"""Searches by the operator's service: SearXNG, Brave, Tavily or You."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from parts.sandbox.guest.browser.network import CannotRead, PageRequest, read
from parts.sandbox.guest.browser.page import ShownPage, link, plain

MOST_RESULTS = 20
_MOST_SNIPPET = 500  # characters

# Where the results are in an answer, and what a result calls its text.
_FOUND = {
    "brave": (("web", "results"), "description"),
    "tavily": (("results",), "content"),
    "you": (("results", "web"), "description"),
}
_SEARXNG = (("results",), "content")


def search(service: Mapping[str, str], query: str, num: int) -> ShownPage:
    """A page of results; `service` has `name`, one of those above or SearXNG's URL, and `key`."""
    num = max(1, min(num, MOST_RESULTS))
    answer = read(_wanted(service["name"], service.get("key", ""), query, num))
    path, text = _FOUND.get(service["name"], _SEARXNG)
    try:
        found: Any = json.loads(answer.text)
        for name in path:
            found = found[name]
        results = [(str(each["url"]), str(each["title"]), each.get(text)) for each in found[:num]]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise CannotRead("the search service's answer is not its JSON") from None
    page = ShownPage("", plain(query), "", is_result=True)
    lines = ["", "URL: ", "# Search Results", ""]
    for number, (url, title, said) in enumerate(results):
        page.links[str(number)] = url
        about = plain(str(said or ""))[:_MOST_SNIPPET]
        lines.append(f"  * {link(number, title or urlsplit(url).netloc, url, '')} {about}")
    if not results:
        lines.append(f"No results for: {page.title}")
    page.text = "\n".join(lines)
    return page


def _wanted(name: str, key: str, query: str, num: int) -> PageRequest:
    def get(url: str, headers: Mapping[str, str], **fields: Any) -> PageRequest:
        return PageRequest(f"{url}?{urlencode(fields)}", headers, is_trusted=True)

    if name == "brave":
        url = "https://api.search.brave.com/res/v1/web/search"
        return get(url, {"x-subscription-token": key}, q=query, count=num)
    if name == "you":
        return get("https://api.ydc-index.io/v1/search", {"x-api-key": key}, query=query, count=num)
    if name == "tavily":
        return PageRequest(
            "https://api.tavily.com/search",
            {"authorization": f"Bearer {key}", "content-type": "application/json"},
            json.dumps({"query": query, "max_results": num}).encode(),
            is_trusted=True,
        )
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return get(f"{name.rstrip('/')}/search", headers, q=query, format="json")
