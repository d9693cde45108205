"""The page at /docs: what is served, how it does, and every route with an example that runs."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.e2e.conftest import Server
from tests.parts.pages.browser.conftest import AXE

pytestmark = pytest.mark.browser

LANGUAGES = (("curl", ["bash", "-c"]), ("Python", [sys.executable, "-c"]))


@pytest.fixture
def docs(page: Page, server: Server) -> Page:
    page.goto(f"{server.url}/docs")
    expect(page.get_by_role("status").first).to_have_text("nano")
    return page


def opened(docs: Page, route: str) -> Locator:
    """A route such as `POST /tokenize`, unfolded."""
    method, path = route.split(" ")
    summary = docs.locator("summary").filter(has=docs.get_by_text(path, exact=True))
    summary = summary.filter(has=docs.get_by_text(method, exact=True))
    summary.click()
    return docs.locator("details.route").filter(has=summary)


def test_it_says_what_is_served_and_why(docs: Page) -> None:
    card = docs.locator(".card")
    expect(card).to_contain_text("demonstration model")
    expect(card).to_contain_text("Apache-2.0")
    expect(card).to_contain_text("4,096 tokens")
    expect(card).to_contain_text("native-cpu-fp32-tp1-pp1-balanced")
    expect(card).to_contain_text("demonstration model")


def test_fields_have_their_bounds_in_words(docs: Page) -> None:
    fields = opened(docs, "POST /v1/chat/completions").get_by_role("row")
    for name, told in (
        ("repetition_penalty", "Above 0, at most 10."),
        ("n", "1 to 128."),
        ("max_tokens", "At least 1."),
    ):
        row = fields.filter(has=docs.get_by_role("rowheader", name=name, exact=True)).first
        expect(row).to_contain_text(told)


def test_the_plots_follow_what_is_asked(docs: Page) -> None:
    first = docs.get_by_role("img", name="Time to first token, median")
    expect(first).to_have_attribute("aria-label", re.compile("nothing yet"))
    run = opened(docs, "POST /v1/chat/completions").get_by_role("button", name="Run here")
    run.click()
    expect(first).to_have_attribute("aria-label", re.compile(r"\d+ ms"))
    expect(docs.get_by_role("img", name="Requests")).to_have_attribute(
        "aria-label", "Requests: 0 running, 0 waiting"
    )
    expect(docs.get_by_role("img", name="Prefix-cache hits")).to_have_attribute(
        "aria-label", re.compile(r"\d %")
    )
    cache = docs.locator("figure", has=docs.get_by_role("img", name="KV cache in use"))
    expect(cache.locator(".scale")).to_have_text(["100 %", "0", re.compile(r"^\d+ s agonow$")])
    cache.get_by_role("img").hover()
    expect(cache.locator("strong")).to_have_text(re.compile(r"^[\d.]+ %, \d+ s ago$"))


def test_every_example_without_a_placeholder_runs_as_it_stands(docs: Page) -> None:
    """As curl and as Python, pasted into a shell."""
    ran = 0
    expect(docs.locator("details.route").first).to_be_visible()  # the document takes a second
    for route in docs.locator("details.route").all():
        if "/v1/engine/kill" in route.locator("summary").first.inner_text():
            continue  # allowed here, and the tests beside this one need the engine
        route.locator("summary").first.click()
        expect(route.locator(".example")).to_be_visible()  # drawn after the unfolding
        menu = route.get_by_role("combobox", name="Example")
        names = menu.locator("option").all_inner_texts() if menu.count() else [""]
        for name, (language, command) in itertools.product(names, LANGUAGES):
            if name:
                menu.select_option(name)
            route.get_by_role("button", name=language, exact=True).click()
            code = route.locator(".example code").first.inner_text()
            if re.search(r"/[A-Z_]{4,}|\"[A-Z_]{4,}\"", code):
                continue
            done = subprocess.run([*command, code], capture_output=True, text=True, timeout=300)
            if '"error"' in done.stdout and "NIM_" in done.stdout:
                break  # off here; the answer names the setting that allows it
            assert done.returncode == 0, (code, done.stderr)
            assert '"error":{' not in done.stdout, (code, done.stdout)
            ran += 1
        route.locator("summary").first.click()
    assert ran >= 48


def test_a_body_can_be_changed_and_run_in_the_page(docs: Page) -> None:
    route = opened(docs, "POST /tokenize")
    body = route.get_by_label("Request body (editable)")
    body.fill(json.dumps({"prompt": "Hello"}))
    expect(route.locator(".example code").first).to_contain_text('"prompt": "Hello"')
    route.get_by_role("button", name="Run here").click()
    expect(route.get_by_label("Answer", exact=True)).to_contain_text('"count": 1')
    body.fill("[")
    expect(route.get_by_role("alert")).to_have_text("The body is not a JSON object.")
    expect(route.get_by_role("button", name="Run here")).to_be_hidden()


def test_a_stream_is_shown_as_it_comes_beside_its_request(docs: Page) -> None:
    route = opened(docs, "POST /v1/chat/completions")
    route.get_by_role("combobox", name="Example").select_option("stream")
    code = route.locator(".example pre").first
    expect(code).to_contain_text('"stream": true')
    docs.evaluate("""() => {
        window.seen = new Set();
        const note = () => window.seen.add(document.querySelector(".ran")?.textContent.length);
        new MutationObserver(note).observe(document.body, { subtree: true, childList: true,
            characterData: true });
    }""")
    route.get_by_role("button", name="Run here").click()
    answer = route.get_by_label("Answer", exact=True)
    expect(answer).to_contain_text("200 after")
    expect(answer).to_contain_text("data: [DONE]")
    assert docs.evaluate("window.seen.size") > 4
    left, right = code.bounding_box(), answer.bounding_box()
    assert left is not None
    assert right is not None
    assert left["x"] + left["width"] <= right["x"]
    assert abs(left["y"] - right["y"]) < 2


@pytest.mark.console("400 (Bad Request)")
def test_what_the_server_refuses_is_shown_as_it_came(docs: Page) -> None:
    route = opened(docs, "POST /tokenize")
    route.get_by_label("Request body (editable)").fill('{"promt": "Hello"}')
    route.get_by_role("button", name="Run here").click()
    expect(route.get_by_label("Answer", exact=True)).to_contain_text("promt")


def test_fields_are_told_with_what_they_hold(docs: Page) -> None:
    route = opened(docs, "POST /v1/chat/completions")
    table = route.get_by_role("table", name="Body")
    expect(table.get_by_role("rowheader").first).to_contain_text("required")
    row = table.get_by_role("row").filter(has_text="stream_options")
    row.locator("summary").click()
    expect(row).to_contain_text("include_usage")
    expect(table.get_by_role("rowheader").filter(has_text="nvext")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 768, 360])
def test_nobody_is_shut_out_of_the_catalogue(docs: Page, scheme: str, width: int) -> None:
    docs.emulate_media(color_scheme=scheme)
    docs.set_viewport_size({"width": width, "height": 800})
    route = opened(docs, "POST /v1/chat/completions")
    route.get_by_role("button", name="Run here").click()
    expect(route.get_by_label("Answer", exact=True)).to_contain_text("200 after")
    assert docs.evaluate("document.documentElement.scrollWidth") <= width
    docs.evaluate(AXE.read_text(encoding="utf-8"))
    found = docs.evaluate("() => axe.run()")
    assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in found["violations"]] == []


def test_it_can_be_used_by_keyboard(docs: Page) -> None:
    summary = docs.locator("details.route > summary").first
    summary.focus()
    docs.keyboard.press("Enter")
    body = docs.get_by_label("Request body (editable)")
    expect(body).to_be_visible()
    docs.keyboard.press("Tab")
    expect(docs.get_by_role("combobox", name="Example")).to_be_focused()
    docs.keyboard.press("Tab")
    expect(body).to_be_focused()
    docs.keyboard.press("Tab")
    expect(docs.get_by_role("button", name="curl")).to_be_focused()


def test_the_pages_lead_to_each_other(docs: Page, server: Server) -> None:
    docs.get_by_role("link", name="Playground").click()
    expect(docs.get_by_label("Message", exact=True)).to_be_visible()
    docs.get_by_role("link", name="API").click()
    expect(docs.get_by_role("heading", name="Routes")).to_be_visible()


@pytest.mark.parametrize("at", ["", "docs"])
def test_a_path_prefix_is_no_matter(page: Page, server: Server, at: str) -> None:
    """As behind a gateway that takes the prefix off."""

    def taken_off(route: Route) -> None:
        url = route.request.url.replace("/team/llm/", "/")
        route.fulfill(response=route.fetch(url=url))

    page.route("**/team/llm/**", taken_off)
    page.goto(f"{server.url}/team/llm/{at}")
    expect(page.get_by_role("status").first).to_have_text("nano")
    if at:
        code = opened(page, "GET /v1/models").locator(".example code").first
        expect(code).to_have_text(f"curl {server.url}/team/llm/v1/models")
        expect(page.locator(".card")).to_contain_text(f"{server.url}/team/llm/v1")
