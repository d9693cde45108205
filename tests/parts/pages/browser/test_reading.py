"""Reading, finding, printing and asking again: what a person does with long conversations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.parts.pages.browser.standin import StandIn
from tests.parts.pages.browser.test_playground import ask, wait_for_answer
from tests.parts.pages.browser.test_real_answers import (
    chats,
    context,
    opened,
    page,
    standin,
    wait_until_kept,
)

__all__ = ["context", "page", "standin"]  # fixtures
pytestmark = pytest.mark.browser

LONG = "\n\n".join(f"Paragraph {number} of a long answer." for number in range(120))


def test_a_reader_who_scrolled_up_jumps_to_the_end(page: Page, standin: StandIn) -> None:
    standin.answer = LONG
    ask(page, "Tell me")
    wait_for_answer(page)
    jump = page.get_by_role("button", name="Jump to the end")
    expect(jump).to_have_count(0)
    log = page.get_by_role("log")
    log.evaluate("node => node.scrollTo(0, 0)")
    jump.click()
    expect(page.get_by_text("Paragraph 119")).to_be_in_viewport()
    expect(jump).to_have_count(0)


def test_a_conversation_is_printed_whole_and_alone(page: Page, standin: StandIn) -> None:
    standin.answer = LONG
    ask(page, "Tell me")
    wait_for_answer(page)
    page.emulate_media(media="print", color_scheme="dark")
    for name in ("Message", "Instructions"):
        expect(page.get_by_label(name, exact=True)).to_be_hidden()
    expect(page.get_by_role("button", name="Retry")).to_be_hidden()
    ink = page.locator(".markdown").evaluate("node => getComputedStyle(node).color")
    assert ink == "rgb(0, 0, 0)"
    sheets = len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4")))
    assert 3 <= sheets <= 8


def test_conversations_are_found_by_their_words(page: Page, standin: StandIn) -> None:
    for question, answer in (("Rivers", "The Danube."), ("Mountains", "The Matterhorn.")):
        standin.answer = answer
        page.keyboard.press("Control+Shift+O")
        ask(page, question)
        wait_for_answer(page)
    page.keyboard.press("Control+k")
    page.keyboard.type("danube")
    chats = page.get_by_role("navigation", name="Conversations").get_by_role("listitem")
    expect(chats).to_have_count(1)
    expect(chats).to_contain_text("Rivers")
    page.keyboard.type(" matterhorn")
    expect(page.get_by_text("No conversation has all these words.")).to_be_visible()


def test_a_conversation_is_given_a_name(page: Page, standin: StandIn) -> None:
    ask(page, "First question")
    wait_for_answer(page)
    page.get_by_role("button", name="Edit", exact=True).click()
    page.get_by_label("Your message").fill("Put differently")
    page.get_by_role("article", name="You").get_by_role("button", name="Send").click()
    wait_for_answer(page)
    assert chats(page) == ["Put differently"]
    field = page.get_by_label("Name of the conversation")
    page.get_by_role("button", name="Rename Put differently").click()
    field.fill("Not this")
    field.press("Escape")
    assert chats(page) == ["Put differently"]
    page.get_by_role("button", name="Rename Put differently").click()
    field.fill("Given by me")
    field.press("Enter")
    wait_until_kept(page, "Given by me")
    page.get_by_role("button", name="Edit", exact=True).click()
    page.get_by_label("Your message").fill("Once more")
    page.get_by_role("article", name="You").get_by_role("button", name="Send").click()
    wait_for_answer(page)
    page.reload()
    assert chats(page) == ["Given by me"]


def test_a_text_is_copied_over_plain_http_too(page: Page, standin: StandIn) -> None:
    """Browsers give pages of other hosts no clipboard there."""
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.reload()
    standin.answer = "Copy **this**."
    ask(page, "What?")
    wait_for_answer(page)
    page.get_by_role("article", name="Assistant").get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    field = page.get_by_label("Message", exact=True)
    field.press("Control+v")
    expect(field).to_have_value("Copy **this**.")


def test_keys_are_listed_and_the_arrow_edits_the_last_question(page: Page) -> None:
    ask(page, "First")
    wait_for_answer(page)
    page.get_by_label("Message", exact=True).press("ArrowUp")
    expect(page.get_by_label("Your message")).to_be_focused()
    expect(page.get_by_label("Your message")).to_have_value("First")
    page.keyboard.press("Escape")
    page.get_by_role("log").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("edit the last question")


def test_an_answer_is_asked_for_again_with_one_setting_changed(
    page: Page, standin: StandIn
) -> None:
    ask(page, "Again")
    wait_for_answer(page)
    page.get_by_label("Retry with").select_option("high effort")
    expect(page.locator(".paths")).to_contain_text("2/2")
    wait_for_answer(page)
    assert standin.asked[-1]["reasoning_effort"] == "high"
    expect(page.get_by_label("Reasoning effort")).to_have_value("medium")


def test_long_lines_of_code_wrap_on_demand(page: Page, standin: StandIn) -> None:
    standin.answer = "```text\n" + "a long line " * 40 + "\n```"
    ask(page, "Code")
    wait_for_answer(page)
    code = page.locator(".codeblock pre")
    is_wider = "node => node.scrollWidth > node.clientWidth"
    assert code.evaluate(is_wider)
    page.get_by_role("button", name="Wrap").click()
    assert not code.evaluate(is_wider)


def test_a_conversation_is_saved_as_markdown(page: Page, tmp_path: Path) -> None:
    ask(page, "Save me")
    wait_for_answer(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Markdown").click()
    download.value.save_as(tmp_path / "chat.md")
    text = (tmp_path / "chat.md").read_text(encoding="utf-8")
    assert text == "# Save me\n\n## You\n\nSave me\n\n## Assistant\n\nYes.\n"


def test_the_settings_fold_away_where_they_would_crowd_the_answer(
    context: BrowserContext, standin: StandIn
) -> None:
    page = opened(context, standin)
    page.set_viewport_size({"width": 1000, "height": 800})
    expect(page.get_by_label("Instructions")).to_be_hidden()
    expect(page.get_by_role("navigation", name="Conversations")).to_be_visible()
    page.get_by_role("button", name="Settings", exact=True).click()
    expect(page.get_by_label("Instructions")).to_be_visible()
