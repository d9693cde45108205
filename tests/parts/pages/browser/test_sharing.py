"""Turns that go, fields, examples, links, code for other libraries, and where the time went."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.parts.pages.browser.conftest import page as nano_page
from tests.parts.pages.browser.conftest import shoot
from tests.parts.pages.browser.standin import StandIn
from tests.parts.pages.browser.test_instrument import violations
from tests.parts.pages.browser.test_playground import ask, wait_for_answer
from tests.parts.pages.browser.test_real_answers import context, opened, page, standin

__all__ = ["context", "nano_page", "page", "standin"]  # fixtures
pytestmark = pytest.mark.browser


def said(standin: StandIn) -> list[str]:
    return [message["content"] for message in standin.asked[-1]["messages"]]


def test_a_question_is_deleted_with_its_answer_and_brought_back(
    page: Page, standin: StandIn
) -> None:
    for question in ("First", "Second", "Third"):
        ask(page, question)
        wait_for_answer(page)
    delete = page.get_by_role("button", name="Delete this question and its answer")
    delete.nth(1).click()
    expect(page.get_by_role("article")).to_have_count(4)
    ask(page, "Fourth")
    wait_for_answer(page)
    assert said(standin) == ["First", "Yes.", "Third", "Yes.", "Fourth"]
    delete.last.click()
    expect(page.get_by_text("Deleted a question with its answer.")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("article", name="You").last).to_contain_text("Fourth")
    page.reload()
    expect(page.get_by_role("article")).to_have_count(6)


def test_further_fields_are_sent(page: Page, standin: StandIn) -> None:
    page.get_by_text("More fields").click()
    page.get_by_label("Top k").fill("40")
    page.get_by_label("Presence penalty").fill("0.5")
    page.get_by_label("Stop strings").fill("END\nSTOP")
    page.get_by_label("Logit bias").fill('{"5": -100}')
    ask(page, "Hello")
    wait_for_answer(page)
    asked = standin.asked[-1]
    assert (asked["top_k"], asked["presence_penalty"]) == (40, 0.5)
    assert (asked["stop"], asked["logit_bias"]) == (["END", "STOP"], {"5": -100})
    page.get_by_label("Min p").fill("7")
    expect(page.get_by_text("Takes 0 to 1.")).to_be_visible()


def test_a_schema_is_made_from_an_example(page: Page, standin: StandIn) -> None:
    page.get_by_label("Make the answer follow this JSON schema").check()
    page.get_by_role("button", name="Example", exact=True).click()
    field = page.get_by_label("An answer as it should be")
    field.fill('{"name": "Ada", "born": ')
    expect(page.get_by_text("This is not a JSON object yet.")).to_be_visible()
    field.fill('{"name": "Ada", "born": 1815}')
    page.get_by_role("button", name="Form", exact=True).click()
    expect(page.get_by_role("group", name="Field born").get_by_label("Kind")).to_have_value(
        "whole number"
    )
    ask(page, "Who?")
    wait_for_answer(page)
    schema = standin.asked[-1]["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["name", "born"]


def test_a_link_opens_the_question_with_its_settings_elsewhere(
    browser: Browser, context: BrowserContext, standin: StandIn, page: Page
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Instructions").fill("Antworte höflich 👋")
    page.get_by_label("Message", exact=True).fill("Wie geht's?")
    page.get_by_role("button", name="Share a link").click()
    link = page.evaluate("navigator.clipboard.readText()")
    there = browser.new_context()
    other = opened(there, standin, link.removeprefix(standin.url))
    expect(other.get_by_label("Message", exact=True)).to_have_value("Wie geht's?")
    expect(other.get_by_label("Instructions")).to_have_value("Antworte höflich 👋")
    assert standin.asked == []  # the reader sends it
    other.get_by_role("button", name="Send", exact=True).click()
    wait_for_answer(other)
    assert standin.asked[-1]["seed"] == 7
    other.get_by_role("button", name="New chat", exact=True).click()
    expect(other.get_by_label("Instructions")).to_have_value("")  # it ends with its chat
    there.close()


def test_where_the_time_went(page: Page, standin: StandIn) -> None:
    standin.thoughts, standin.answer, standin.tokens_per_s = "I think so. ", "one two three", 10
    ask(page, "Slowly")
    wait_for_answer(page)
    page.get_by_role("button", name="Request & raw").click()
    page.get_by_role("tab", name="Time").click()
    bars = page.locator(".times li")
    expect(bars).to_have_count(3)
    expect(bars.nth(0)).to_contain_text("Queue and prompt: 1,000 tokens")
    expect(bars.nth(1)).to_contain_text("Thinking")
    expect(bars.nth(2)).to_contain_text("Answer")
    shoot(page, "times")


def test_a_button_ends_the_reasoning(page: Page, standin: StandIn) -> None:
    standin.thoughts, standin.thinks_on = "I could go on. ", True
    ask(page, "Slowly")
    page.get_by_role("button", name="Answer now").click()
    wait_for_answer(page)
    expect(page.get_by_role("article", name="Assistant")).to_contain_text("Yes.")
    assert standin.controlled == [("chatcmpl-1", {"action": "reasoning_end"})]
    expect(page.get_by_role("button", name="Answer now")).to_have_count(0)


@pytest.mark.parametrize("name", ["Responses", "Messages"])
def test_the_code_for_another_api_runs(nano_page: Page, name: str) -> None:
    page = nano_page
    page.get_by_label("Instructions").fill("You are brief.")
    page.get_by_label("Temperature").fill("0")
    ask(page, "What is nano?")
    wait_for_answer(page)
    page.get_by_role("button", name="Request & raw").click()
    page.get_by_role("tab", name=name).click()
    code = page.locator("[role=tabpanel] code").inner_text()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "demonstration model" in done.stdout
    assert json.dumps("You are brief.") in code


def test_questions_are_asked_under_several_settings_and_judged(
    page: Page, standin: StandIn
) -> None:
    page.get_by_label("Seed").fill("7")
    page.get_by_role("button", name="Table").click()
    dialog = page.get_by_role("dialog", name="Questions and settings")
    dialog.get_by_label("One question per line").fill("Is it so? => yes\nIs it not? => no\n\nAny")
    dialog.get_by_label("Extract").check()
    dialog.get_by_role("button", name="Ask all").click()
    head = dialog.get_by_role("columnheader")
    expect(head).to_have_text(["Question", "this chat: 2 of 3 pass", "Extract: 2 of 3 pass"])
    row = dialog.get_by_role("row").filter(has_text="Is it not?")
    expect(row.get_by_text("✗ fail")).to_have_count(2)
    assert len(standin.asked) == 6
    assert sorted(body.get("seed", 0) for body in standin.asked) == [0, 0, 0, 7, 7, 7]
    assert violations(page) == []
    for width in (1280, 768, 360):
        page.set_viewport_size({"width": width, "height": 800})
        shoot(page, f"table-{width}")
        assert dialog.evaluate("node => node.scrollWidth <= node.clientWidth")
    page.keyboard.press("Escape")
    expect(page.get_by_role("article")).to_have_count(0)
