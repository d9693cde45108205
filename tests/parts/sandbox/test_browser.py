"""The tool `browser` in its sandbox: what it searches by, and where it does not go."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from engines.base import EngineRequest
from parts.sandbox.launch import LAUNCH
from parts.sandbox.runners import browser
from parts.sandbox.serving import SERVING
from profiles.errors import InvalidConstraint
from service.settings.errors import SettingsError
from service.settings.settings import load
from service.tools import Toolbox, ToolSession
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.needs import needs
from tests.parts.sandbox.web import Web

pytestmark = pytest.mark.heavy  # it starts interpreters


@pytest_asyncio.fixture
async def session(works: None, searxng: Web) -> AsyncIterator[ToolSession]:
    tool = browser({"name": searxng.url, "key": ""})
    async with Toolbox({"browser": tool}).session({}) as session:
        yield session


async def test_results_are_shown_as_the_model_knows_them(
    session: ToolSession, searxng: Web
) -> None:
    found = await session.call("browser.search", '{"query": "A & é", "topn": 5}')
    assert not found.is_error
    assert found.text.splitlines() == [
        "[0] A & é",
        "**viewing lines [0 - 5] of 5**",
        "",
        "L0: ",
        "L1: URL: ",
        "L2: # Search Results",
        "L3: ",
        "L4:   * 【0†An ‡A〖1〗†a.example】 About A. More",
        "L5:   * 【1†Meta†169.254.169.254】 ",
    ]
    assert searxng.asked[0][0] == "/search?q=A+%26+%C3%A9&format=json"


# What the model, or a page that talked it into it, may try: none of it is a connection.
PRIVATE = {
    "loopback": "http://127.0.0.1/",
    "its name": "http://localhost/",
    "in one number": "http://2130706433/",
    "in hexadecimal": "http://0x7f.1/",
    "IPv6 loopback": "http://[::1]/",
    "IPv4 in IPv6": "http://[::ffff:127.0.0.1]/",
    "IPv4 in NAT64": "http://[64:ff9b::7f00:1]/",
    "IPv4 in 6to4": "http://[2002:7f00:1::]/",
    "metadata": "http://169.254.169.254/latest/meta-data/",
    "metadata of Azure": "http://168.63.129.16/machine",
    "metadata of Alibaba": "http://100.100.100.200/",
    "metadata in IPv6": "http://[fd00:ec2::254]/",
    "a private network": "http://10.0.0.1/",
    "another": "http://192.168.1.1/",
    "this network": "http://0.0.0.0/",
    "multicast": "http://224.0.0.1/",
    "link-local": "http://[fe80::1]/",
}
REFUSED = {
    "a file": ("file:///etc/passwd", "not a URL of http or https"),
    "another scheme": ("gopher://a.example/", "not a URL of http or https"),
    "another port": ("http://93.184.216.34:6379/", "port 6379 is not opened"),
    "a password": ("http://user:secret@a.example/", "a user or a password"),
    "no host": ("http:///x", "not a URL of http or https"),
    "a wrong port": ("http://a.example:99999999/", "not a URL"),
    "source of the same": ("view-source:http://127.0.0.1/", "not on the public web"),
}


async def test_what_is_not_public_is_not_opened(session: ToolSession) -> None:
    private = {name: (url, "is not on the public web") for name, url in PRIVATE.items()}
    for name, (url, said) in (private | REFUSED).items():
        found = await session.call("browser.open", json.dumps({"id": url}))
        assert found.is_error, name
        assert said in found.text, name


async def test_nothing_listens_to_it(session: ToolSession, searxng: Web) -> None:
    """Not the server's port, and the search service only for searches."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        port = server.getsockname()[1]
        for url in (f"http://127.0.0.1:{port}/", f"{searxng.url}/search"):
            assert (await session.call("browser.open", json.dumps({"id": url}))).is_error
        with pytest.raises(BlockingIOError):
            server.accept()
    assert searxng.asked == []


async def test_a_result_leads_to_no_private_address(session: ToolSession) -> None:
    await session.call("browser.search", '{"query": "q"}')
    found = await session.call("browser.open", '{"id": 1, "cursor": 0}')
    assert found.text == "Error: the host 169.254.169.254 is not on the public web"


async def test_a_search_service_that_redirects_is_not_followed(
    session: ToolSession, searxng: Web
) -> None:
    searxng.answers["/search"] = (302, {"location": f"{searxng.url}/secret"}, b"")
    found = await session.call("browser.search", '{"query": "q"}')
    assert found.text == "Error: the search service redirects, which is not followed"
    assert len(searxng.asked) == 1


WRONG = (
    ("search", "{", "not JSON"),
    ("search", "[" * 100_000, "not JSON"),
    ("search", "[]", "not a JSON object"),
    ("search", "{}", "search needs a query"),
    ("find", '{"pattern": "x"}', "no page is open"),
    ("open", "{}", "no page is open"),
    ("open", '{"cursor": 1e999}', "cursor is not a number"),
    ("shell", "{}", "browser has search, open and find, not shell"),
)


async def test_a_wrong_call_says_what_is_wrong(session: ToolSession) -> None:
    for action, arguments, said in WRONG:
        found = await session.call(f"browser.{action}", arguments)
        assert found.is_error
        assert said in found.text


async def test_a_failed_search_does_not_tell_the_operator_s_address(
    session: ToolSession, searxng: Web
) -> None:
    searxng.answers["/search"] = (500, {}, b"")
    found = await session.call("browser.search", '{"query": "q"}')
    assert found.text == "Error: the search service answers 500"
    searxng.answers["/search"] = (200, {"content-type": "text/html"}, b"<html>")
    found = await session.call("browser.search", '{"query": "q"}')
    assert found.text == "Error: the search service's answer is not its JSON"


async def test_cursors_and_links_lead_through_the_pages(session: ToolSession) -> None:
    await session.call("browser.search", '{"query": "q"}')
    again = await session.call("browser.open", '{"loc": 4, "num_lines": "1"}')
    assert again.text.splitlines()[0] == "[1] q"
    assert again.text.splitlines()[1] == "**viewing lines [4 - 4] of 5**"
    for arguments, said in (
        ('{"loc": 60}', "the page has lines 0 to 5, not 60"),
        ('{"cursor": 7}', "cursors are 0 to 1, not 7"),
        ('{"id": 9}', "the page has no link 9"),
    ):
        assert said in (await session.call("browser.open", arguments)).text
    found = await session.call("browser.find", '{"pattern": "a"}')
    assert "find does not work on results" in found.text


def test_a_browser_without_a_search_service_does_not_start(works: None) -> None:
    asked = {"builtin_tools": "python,browser"}
    with pytest.raises(InvalidConstraint, match="set NIM_BROWSER_SEARCH to the URL of a SearXNG"):
        LAUNCH.check_server(load(asked))
    with pytest.raises(InvalidConstraint, match="tavily needs a key: set NIM_BROWSER_SEARCH_KEY"):
        LAUNCH.check_server(load(asked | {"browser_search": "tavily"}))
    with pytest.raises(SettingsError, match="is not the URL of a SearXNG, brave, tavily, you"):
        load(asked | {"browser_search": "bing"})
    LAUNCH.check_server(load(asked | {"browser_search": "tavily", "browser_search_key": "k"}))
    LAUNCH.check_server(load(asked | {"browser_search": "http://searxng:8080"}))


@needs("responses")
async def test_an_answer_goes_on_behind_a_search(
    works: None,
    searxng: Web,
    make_runtime: Any,
    make_client: Callable[..., Any],
    harmony_ids: Callable[[str], tuple[int, ...]],
) -> None:
    call = '<|channel|>analysis to=browser.search code<|message|>{"query": "A"}<|call|>'
    final = "<|channel|>final<|message|>A is one【0†L4】.<|return|>"
    prompts: list[EngineRequest] = []

    def write(request: EngineRequest) -> tuple[int, ...]:
        prompts.append(request)
        return harmony_ids(call if len(prompts) == 1 else final)

    engine = FakeEngine(FakeOptions(script=(1,)), write)
    settings = load({"builtin_tools": "browser", "browser_search": searxng.url})
    runtime = SERVING.wire(make_runtime(engine=engine), settings)
    client = await make_client(runtime)
    asked = {"model": "gpt-oss-20b", "input": "A?", "tools": [{"type": "web_search"}]}
    search, message = (await client.post("/v1/responses", json=asked)).json()["output"]
    assert (search["type"], search["status"]) == ("web_search_call", "completed")
    # Results of a search are no page that could be cited.
    assert message["content"][0]["text"] == "A is one【0†L4】."
    assert message["content"][0]["annotations"] == []
