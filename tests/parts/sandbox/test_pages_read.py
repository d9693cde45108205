"""How the browser reads pages: where it connects to, what it follows, how much it takes.

In this process, where a test may say what is public: in the sandbox no page of a test is.
"""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from parts.sandbox.guest.browser import network
from parts.sandbox.guest.browser.network import MOST_BYTES, CannotRead, PageRequest, is_public, read
from parts.sandbox.guest.browser.page import page_of_html
from parts.sandbox.guest.browser.tool import Browser
from tests.parts.sandbox.web import HTML, Web, serving

HOSTS = ("site.test", "other.test")


class Names:
    """A resolver in which a name may move after it was looked up."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.later: dict[str, str] = {}
        self._real = socket.getaddrinfo

    def __call__(self, host: Any, port: Any, *rest: Any, **named: Any) -> Any:
        if host not in HOSTS:
            return self._real(host, port, *rest, **named)
        self.asked.append(host)
        address = "127.0.0.1"
        if len(self.asked) > 1 and host in self.later:
            address = self.later[host]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """127.0.0.1 is public here, at every port, and nothing else is."""
    found = Names()
    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr(network, "is_public", lambda address: address == "127.0.0.1")
    return found


@pytest.fixture
def web(names: Names, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    with serving({}) as web:
        monkeypatch.setattr(network, "PORTS", (80, 443, web.port))
        yield web


def at(web: Web, path: str, host: str = "site.test") -> PageRequest:
    return PageRequest(f"http://{host}:{web.port}{path}")


def test_a_name_that_moves_is_not_followed(web: Web, names: Names) -> None:
    """DNS rebinding: the connection goes to the address that was checked."""
    names.later["site.test"] = "10.0.0.1"
    web.answers["/"] = (200, HTML, b"<p>here")
    assert read(at(web, "/")).text == "<p>here"
    assert names.asked == ["site.test"]
    with pytest.raises(CannotRead, match=r"site\.test is not on the public web"):
        read(at(web, "/"))


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("http://169.254.169.254/latest/", "169.254.169.254 is not on the public web"),
        ("//10.0.0.1/", "10.0.0.1 is not on the public web"),
        ("file:///etc/passwd", "not a URL of http or https"),
        ("http://site.test:22/", "port 22 is not opened"),
        ("/a", "redirects more than 5 times"),
    ],
)
def test_a_redirect_is_checked_as_the_first_address(web: Web, location: str, said: str) -> None:
    web.answers["/a"] = (302, {"location": location}, b"")
    with pytest.raises(CannotRead, match=said):
        read(at(web, "/a"))


@pytest.mark.parametrize("charset", ["nonsense", "idna", "zlib"])
def test_a_page_with_a_charset_that_is_none_is_read_as_utf_8(web: Web, charset: str) -> None:
    headers = {"content-type": f"text/html; charset={charset}"}
    web.answers["/"] = (200, headers, "<p>\u00e9..".encode())
    assert read(at(web, "/")).text == "<p>\u00e9.."


def test_a_redirect_to_another_host_is_followed_without_what_was_sent(web: Web) -> None:
    web.answers["/a"] = (301, {"location": f"http://other.test:{web.port}/b"}, b"")
    web.answers["/b"] = (200, HTML, "é".encode())
    found = read(at(web, "/a"))
    assert (found.url, found.text) == (f"http://other.test:{web.port}/b", "é")
    assert web.asked[1][1]["Host"] == f"other.test:{web.port}"
    assert "Cookie" not in web.asked[1][1]


def test_a_url_is_written_as_one(web: Web) -> None:
    web.answers["/a%20b"] = (200, HTML, b"x")
    assert read(at(web, "/a b?c=é#d")).url == f"http://site.test:{web.port}/a%20b?c=%C3%A9"


def test_more_bytes_than_may_be_are_not_read(web: Web) -> None:
    web.answers["/"] = (200, HTML, b"x" * (2 * MOST_BYTES))
    assert len(read(at(web, "/")).text) == MOST_BYTES


def test_only_plain_text_is_read(web: Web) -> None:
    web.answers["/pdf"] = (200, {"content-type": "application/pdf"}, b"%PDF")
    zipped = gzip.compress(bytes(1 << 20))
    web.answers["/bomb"] = (200, HTML | {"content-encoding": "gzip"}, zipped)
    with pytest.raises(CannotRead, match="is application/pdf, not text"):
        read(at(web, "/pdf"))
    with pytest.raises(CannotRead, match="is compressed"):
        read(at(web, "/bomb"))


def test_a_server_that_sends_no_end_is_left(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "READ_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setattr(network, "PORTS", (port,))
        with pytest.raises(CannotRead, match=r"not read within 1 seconds|timed out"):
            read(PageRequest(f"http://site.test:{port}/"))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("100.64.0.1", False),
        ("198.18.0.1", False),
        ("192.0.0.192", False),  # Oracle's metadata
        ("255.255.255.255", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("2001:0:0:1::", False),  # Teredo
        ("ff0e::1", False),
        ("fe80::1%eth0", False),
        ("::", False),
    ],
)
def test_what_is_public(address: str, expected: bool) -> None:
    assert is_public(address) is expected


PAGE = """<html><head><title>A
 page</title><style>p {}</style><script>alert(1)</script></head><body>
<h1>One&nbsp;</h1><p>See <a href="/b?c=d">the <b>b</b>【1】</a>, <a href="https://o.example/">o</a>
 and <a href="#x">here</a>, <a href="javascript:x()">not</a>.</p>
<ul><li>first<li>second</ul><pre>a
  b</pre><table><tr><td>1</td><td>2</td></tr></table><img alt="A cat" src=x></body></html>"""


def test_a_page_is_shown_as_text_with_links() -> None:
    page = page_of_html("https://site.example/a", PAGE)
    assert page.title == "A page"
    assert page.links == {"0": "https://site.example/b?c=d", "1": "https://o.example/"}
    assert [line.rstrip() for line in page.lines] == [
        "",
        "URL: https://site.example/a",
        "# One",
        "",
        "See 【0†the b〖1〗】, 【1†o†o.example】 and here, not.",
        "",
        "  * first",
        "  * second",
        "",
        "a",
        "  b",
        "",
        "1 2",
        "",
        "[Image: A cat]",
    ]


def test_find_shows_lines_and_leads_to_them(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(f"<p>line {number}</p>" for number in range(300)) + "<p>A NEEDLE"
    web.answers["/"] = (200, HTML, text.encode())
    browser = Browser()

    def call(action: str, arguments: str) -> list[str]:
        browser.answer(f'{{"action": "{action}", "service": {{}}}}\n{arguments}')
        return capsys.readouterr().out.splitlines()

    url = at(web, "/").url
    opened = call("open", f'{{"id": "{url}"}}')
    assert opened[0] == f"[0] site.test:{web.port} ({url})"
    assert "viewing lines [0 - " in opened[1]
    assert not any("NEEDLE" in line for line in opened)
    found = call("find", '{"pattern": "needle"}')
    assert found[0] == f"[1] Find results for text: `needle` in `site.test:{web.port}` ({url})"
    assert found[3:] == ["L0: # 【0†match at L602】", "L1: A NEEDLE"]
    there = call("open", '{"id": 0}')
    assert there[3] == "L598: line 298"
    assert there[-1] == "L602: A NEEDLE"
    assert len(web.asked) == 1  # the page that is open already
    source = call("open", f'{{"id": "{url}", "view_source": true, "num_lines": 3}}')
    assert "<p>line 0</p>" in source[-1]
