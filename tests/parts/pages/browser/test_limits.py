"""Every limit, refusal and cut is told where the eye is, with the next step as a button."""

from __future__ import annotations

import json
import re

import pytest
from fastapi import Response
from playwright.sync_api import BrowserContext, Page, expect

from tests.parts.pages.browser.standin import MODEL, StandIn, running
from tests.parts.pages.browser.test_playground import ask, wait_for_answer
from tests.parts.pages.browser.test_real_answers import context, opened, page, standin

__all__ = ["context", "page", "standin"]  # fixtures
pytestmark = pytest.mark.browser


def refused(status: int, after: str | None = None) -> Response:
    headers = {"Retry-After": after} if after else {}
    body = json.dumps({"error": {"message": f"Refused with {status}."}})
    return Response(body, status, headers)


def test_a_file_that_does_not_fit_is_not_sent(page: Page, standin: StandIn) -> None:
    files = [
        {"name": "big.txt", "mimeType": "text/plain", "buffer": b"word " * 209_250},
        {"name": "small.txt", "mimeType": "text/plain", "buffer": b"word " * 10},
    ]
    page.get_by_label("Files to attach").set_input_files(files)
    chips = page.get_by_role("list", name="Files").get_by_role("listitem")
    expect(chips.first).to_contain_text("209,250 tokens78,178 too many")
    expect(chips.last).not_to_contain_text("too many")
    expect(page.get_by_role("alert")).to_have_text("78,188 tokens too many for this model.")
    field = page.get_by_label("Message", exact=True)
    field.fill("Summarize")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_disabled()
    field.press("Enter")
    expect(field).to_have_value("Summarize")
    assert standin.asked == []
    page.get_by_role("button", name="Remove big.txt").last.click()
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("button", name="Send", exact=True).click()
    wait_for_answer(page)
    assert len(standin.asked) == 1


def test_a_file_that_fits_alone_is_asked_in_a_new_chat(page: Page) -> None:
    ask(page, "Hello")  # 1,001 tokens
    wait_for_answer(page)
    big = {"name": "big.txt", "mimeType": "text/plain", "buffer": b"word " * 131_000}
    page.get_by_label("Files to attach").set_input_files([big])
    expect(page.get_by_role("alert")).to_have_text("929 tokens too many for this model.")
    page.get_by_label("Message", exact=True).fill("Summarize")
    page.get_by_role("button", name="Ask in a new chat").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("list", name="Files")).to_contain_text("big.txt")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Summarize")


def test_calls_without_end_stop_and_go_on_when_wanted(page: Page, standin: StandIn) -> None:
    standin.answer, standin.calls = "", '{"expression": "1+1"}'
    page.get_by_label("Calculator").check()
    ask(page, "For ever")
    expect(page.get_by_text("Stopped after 8 rounds of calls.")).to_be_visible()
    assert len(standin.asked) == 8
    expect(page.get_by_role("button", name="Send results")).to_have_count(0)
    standin.answer, standin.calls = "Two.", ""
    page.get_by_role("button", name="Go on").click()
    expect(page.locator(".markdown")).to_have_text("Two.")
    roles = [message["role"] for message in standin.asked[-1]["messages"]]
    assert roles == ["user", *["assistant", "tool"] * 8]


def test_questions_that_got_no_answer_are_not_sent_again(page: Page, standin: StandIn) -> None:
    statuses = (401, 429, 503, 500, 400, 502)
    for status in statuses:
        standin.refusals = [refused(status)]
        ask(page, f"Question {status}")
        expect(page.get_by_role("alert").last).to_contain_text(f"Refused with {status}.")
    ask(page, "The seventh")
    wait_for_answer(page)
    assert [each["content"] for each in standin.asked[-1]["messages"]] == ["The seventh"]
    told = page.get_by_text("The model is not told this question and its answer.")
    expect(told).to_have_count(len(statuses))


def test_a_busy_server_is_asked_again_when_it_said(page: Page, standin: StandIn) -> None:
    standin.refusals = [refused(429, "1"), refused(503, "600"), refused(503, "600")]
    ask(page, "Hello")
    expect(page.get_by_role("alert")).to_have_text("Refused with 503.")  # once more by itself
    expect(page.get_by_text(re.compile(r"Try again in \d+ s"))).to_be_visible()
    page.get_by_role("button", name="Now").click()
    expect(page.get_by_text("Try again in")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text(re.compile(r"Try again in \d+ s"))).to_have_count(0)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".markdown")).to_have_text("Yes.")
    expect(page.locator(".paths")).to_have_count(0)  # a refusal is no version of the answer
    assert len(standin.asked) == 4


def test_a_gateways_error_is_named_as_one(page: Page, standin: StandIn) -> None:
    standin.refusals = [Response("<html>Bad gateway</html>", 502)]
    ask(page, "Hello")
    told = "The gateway in front of the server answered 502."
    expect(page.get_by_role("alert")).to_have_text(told)


def test_tokens_of_one_burst_have_no_rate(page: Page, standin: StandIn) -> None:
    standin.answer, standin.tokens_per_s = "word " * 5, 1_000_000
    ask(page, "Hello")
    wait_for_answer(page)
    expect(page.locator(".figures")).to_contain_text("1,000 in, 6 out")
    expect(page.locator(".figures")).not_to_contain_text("tokens/s")


@pytest.mark.parametrize("drawer", ["Chats", "Settings"])
def test_a_drawer_is_closed_by_escape_and_by_its_cross(page: Page, drawer: str) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    toggle = page.get_by_role("button", name=drawer, exact=True)
    inside = page.get_by_label({"Chats": "Search conversations", "Settings": "Seed"}[drawer])
    toggle.click()
    expect(inside).to_be_visible()
    page.keyboard.press("Escape")
    expect(inside).to_be_hidden()
    expect(toggle).to_be_focused()
    toggle.click()
    page.get_by_role("button", name="Close").click()
    expect(inside).to_be_hidden()


def test_a_phones_header_leaves_its_room_to_the_name(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    name = page.locator(".state").bounding_box()
    link = page.get_by_role("link", name="API").bounding_box()
    assert name is not None
    assert link is not None
    assert link["x"] - (name["x"] + name["width"]) < 20


def test_kept_chats_are_read_where_the_server_is_gone(context: BrowserContext) -> None:
    with running(StandIn(answer="Kept `code` and $x^2$.")) as standin:
        page = opened(context, standin)
        ask(page, "Remember me")
        wait_for_answer(page)
        page.evaluate("navigator.serviceWorker.ready")
        expect(page.locator("math")).to_be_visible()
    page.reload()
    expect(page.get_by_role("status")).to_contain_text("The server cannot be reached.")
    expect(page.locator(".markdown")).to_contain_text("Kept code and")
    expect(page.locator("math")).to_be_visible()
    assert MODEL not in page.locator("h2").all_inner_texts()
