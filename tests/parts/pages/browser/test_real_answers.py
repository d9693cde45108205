"""Answers like gpt-oss's: tables, code, formulas, long conversations; nothing of them is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.parts.pages.browser.conftest import shoot
from tests.parts.pages.browser.standin import MODEL, StandIn, running
from tests.parts.pages.browser.test_playground import ask, wait_for_answer
from tests.parts.pages.browser.work import TOKENS, conversation, work

pytestmark = pytest.mark.browser

EVERYTHING = (Path(__file__).parent / "everything.md").read_text(encoding="utf-8")


@pytest.fixture
def standin() -> Iterator[StandIn]:
    with running(StandIn()) as standin:
        yield standin


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(60_000)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, standin: StandIn, request: pytest.FixtureRequest) -> Any:
    page = opened(context, standin)
    yield page
    if not page.is_closed():
        shoot(page, request.node.name)


def opened(context: BrowserContext, standin: StandIn, path: str = "") -> Page:
    page = context.new_page()
    page.goto(standin.url + path)
    expect(page.get_by_role("status").first).to_have_text(MODEL)
    return page


def chats(page: Page) -> list[str]:
    titles = page.locator(".chats li button:first-child").all_inner_texts()
    return [title.removeprefix("● ") for title in titles]


def kept(page: Page) -> list[dict[str, Any]]:
    """The records of IndexedDB."""
    script = """() => new Promise((done) => {
        const asked = indexedDB.open("harmonium");
        asked.onsuccess = () => {
            const all = asked.result.transaction("chats").objectStore("chats").getAll();
            all.onsuccess = () => done(all.result);
        };
    })"""
    records: list[dict[str, Any]] = page.evaluate(script)
    return records


def wait_until_kept(page: Page, text: str) -> None:
    for _ in range(600):
        if text in json.dumps(kept(page), ensure_ascii=False):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{text!r} was not kept")


# Markdown.


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_an_answer_with_everything_is_set_right(
    context: BrowserContext, standin: StandIn, scheme: str, width: int
) -> None:
    standin.answer = EVERYTHING
    page = opened(context, standin)
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    ask(page, "Show me everything")
    wait_for_answer(page)
    answer = page.locator(".markdown")
    # Raw HTML is text, and no word of it is lost.
    expect(answer).to_contain_text("Use the <input> tag with std::vector<int> and <your name>.")
    assert answer.locator("input").count() == 0
    # A number in a table stays in one piece; a wide table scrolls.
    lines = """node => {
        const range = document.createRange();
        range.selectNodeContents(node);
        return new Set([...range.getClientRects()].map((box) => box.top)).size;
    }"""
    for number in ("131072", "16347"):
        assert answer.get_by_role("cell", name=number).evaluate(lines) == 1
    expect(answer.locator("math")).to_have_count(4)
    assert "\\(" not in answer.inner_text()
    expect(answer.locator(".hljs-keyword").first).to_have_text("def")
    expect(answer.locator("figcaption span")).to_have_text(["python", "text"])
    expect(answer).to_contain_text("☑ done")
    expect(answer).to_contain_text("☐ open")
    arabic = answer.get_by_text("مرحبا")
    assert arabic.evaluate("node => getComputedStyle(node).direction") == "rtl"
    # The page itself does not scroll sideways.
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shoot(page, f"everything-{width}-{scheme}")


def test_the_copy_button_is_beside_the_code(page: Page, standin: StandIn) -> None:
    standin.answer = "```python\n" + "x = 1  # a long line " * 8 + "\n```"
    ask(page, "Code")
    wait_for_answer(page)
    button = page.locator("figcaption").get_by_role("button", name="Copy").bounding_box()
    code = page.locator("figure pre").bounding_box()
    assert button is not None
    assert code is not None
    assert button["y"] + button["height"] <= code["y"] + 1


def test_a_finished_block_is_not_touched_again(page: Page, standin: StandIn) -> None:
    standin.answer = "First paragraph.\n\n" + "More words follow here. " * 120
    standin.tokens_per_s = 60
    ask(page, "Go on")
    first = page.locator(".markdown > div").first
    expect(page.locator(".markdown > div")).to_have_count(2)
    first.evaluate("node => getSelection().selectAllChildren(node)")
    first.evaluate("node => (node.firstElementChild.marked = true)")
    expect(page.locator(".markdown")).to_contain_text("follow here. More words follow here. More")
    assert page.evaluate("getSelection().toString().trim()") == "First paragraph."
    assert first.evaluate("node => node.firstElementChild.marked === true")
    page.get_by_role("button", name="Stop").click()


def test_a_long_conversation_stays_quick(context: BrowserContext, standin: StandIn) -> None:
    """200 exchanges, 300 tokens/s: a frame draws the turn that grows and no other."""
    page = opened(context, standin)
    page.evaluate(
        "kept => localStorage.setItem('harmonium.conversations', JSON.stringify([kept]))",
        conversation(200),
    )
    page.reload()
    expect(page.get_by_role("article", name="Assistant")).to_have_count(200)
    touched = """() => {
        window.touched = new Set();
        const note = (records) => {
            for (const { target } of records) {
                const element = target.nodeType === 1 ? target : target.parentElement;
                const turn = element.closest(".turn");
                if (turn) window.touched.add([...turn.parentElement.children].indexOf(turn));
            }
        };
        new MutationObserver(note).observe(document.querySelector(".transcript"),
            { subtree: true, childList: true, characterData: true });
    }"""
    standin.answer, standin.tokens_per_s = "word " * 6000, 300
    ask(page, "And now?")
    expect(page.get_by_role("article", name="Assistant")).to_have_count(201)
    growing = page.locator(".markdown").last
    expect(growing).to_contain_text("word word")
    page.evaluate(touched)
    words = growing.inner_text().count("word")
    expect(growing).to_contain_text(re.compile(f"(word\\s+){{{words + 100}}}"))
    # Of 402 turns only the one that grows is drawn again.
    assert page.evaluate("[...window.touched]") == [401]


def test_a_token_costs_as_much_in_a_long_conversation(browser: Browser, standin: StandIn) -> None:
    """A token is drawn alone: what stands before it is neither styled nor laid out again."""
    short = work(browser, standin, exchanges=2)
    long = work(browser, standin, exchanges=200)
    assert 0 < short.restyled <= 4 * TOKENS, short
    assert 0 < long.restyled <= 4 * TOKENS, long
    assert 0 < long.laid_out <= 1.5 * short.laid_out, (short, long)
    # Of each turn before it only whether it changed is looked at: 13 calls of functions.
    assert long.calls - short.calls <= 40 * TOKENS * 396, (short, long)


# Nothing is lost.


def test_two_tabs_keep_both_conversations(context: BrowserContext, standin: StandIn) -> None:
    one, two = opened(context, standin), opened(context, standin)
    ask(one, "In tab one")
    wait_for_answer(one)
    ask(two, "In tab two")
    wait_for_answer(two)
    wait_until_kept(one, "In tab one")
    wait_until_kept(two, "In tab two")
    expect(one.locator(".chats li")).to_have_count(2)
    one.reload()
    expect(one.locator(".chats li")).to_have_count(2)
    assert set(chats(one)) == {"In tab one", "In tab two"}


def test_a_reload_in_mid_answer_loses_neither_question_nor_answer(
    page: Page, standin: StandIn
) -> None:
    standin.answer, standin.tokens_per_s = "word " * 500, 30
    ask(page, "Tell me something long")
    expect(page.locator(".markdown")).to_contain_text("word word word word word word")
    wait_until_kept(page, "word word word")
    page.reload()
    expect(page.get_by_role("article", name="You")).to_contain_text("Tell me something long")
    expect(page.locator(".markdown")).to_contain_text("word word word")


def test_edit_and_retry_keep_what_was_there(page: Page, standin: StandIn) -> None:
    standin.answer = "First answer."
    ask(page, "First question")
    wait_for_answer(page)
    ask(page, "Second question")
    wait_for_answer(page)
    page.get_by_role("button", name="Edit").first.click()
    standin.answer = "Another answer."
    page.get_by_label("Your message").fill("First question, put differently")
    page.get_by_label("Your message").locator("..").get_by_role("button", name="Send").click()
    wait_for_answer(page)
    questions = page.get_by_role("article", name="You")
    expect(questions).to_have_count(1)
    expect(page.locator(".paths")).to_contain_text("2/2")
    page.get_by_role("button", name="Version before").click()
    expect(questions).to_have_count(2)
    expect(page.get_by_role("article", name="Assistant").first).to_contain_text("First answer.")
    page.get_by_role("button", name="Version after").click()
    expect(page.get_by_role("article", name="Assistant").first).to_contain_text("Another answer.")
    wait_until_kept(page, "Second question")


def test_a_deleted_conversation_can_be_brought_back(page: Page) -> None:
    ask(page, "Keep me")
    wait_for_answer(page)
    page.get_by_role("button", name="Delete Keep me").click()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("article", name="You")).to_contain_text("Keep me")
    page.reload()
    expect(page.get_by_role("article", name="You")).to_contain_text("Keep me")


def test_drafts_belong_to_their_conversation_and_outlive_a_reload(page: Page) -> None:
    ask(page, "First")
    wait_for_answer(page)
    field = page.get_by_label("Message", exact=True)
    field.fill("not sent yet")
    page.get_by_role("button", name="New chat", exact=True).first.click()
    expect(field).to_have_value("")
    page.locator(".chats li").get_by_role("button", name="First", exact=True).click()
    expect(field).to_have_value("not sent yet")
    wait_until_kept(page, "not sent yet")
    page.reload()
    expect(field).to_have_value("not sent yet")


def test_conversations_travel_in_a_file(
    page: Page, browser: Browser, standin: StandIn, tmp_path: Path
) -> None:
    ask(page, "Travel with me")
    wait_for_answer(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    file = tmp_path / "chats.json"
    download.value.save_as(file)
    other = browser.new_context()
    there = opened(other, standin)
    there.get_by_label("Conversations to import").set_input_files(file)
    expect(there.get_by_text("Imported 1 conversations.")).to_be_visible()
    there.locator(".chats li").get_by_role("button", name="Travel with me", exact=True).click()
    expect(there.locator(".markdown")).to_contain_text("Yes.")
    other.close()


@pytest.mark.parametrize("kept", ['[{"id":"1"}]', "{", "[null, 7]", '[{"id":"1","turns":[{}]}]'])
def test_kept_data_of_another_shape_does_not_stop_the_page(
    context: BrowserContext, standin: StandIn, kept: str
) -> None:
    context.add_init_script(f"localStorage.setItem('harmonium.conversations', {json.dumps(kept)})")
    page = opened(context, standin)
    ask(page, "Still there?")
    wait_for_answer(page)
    expect(page.locator(".markdown")).to_contain_text("Yes.")


def test_denied_storage_is_said_and_does_not_stop_the_page(
    context: BrowserContext, standin: StandIn
) -> None:
    context.add_init_script("""
        const denied = { get() { throw new DOMException("denied", "SecurityError"); } };
        for (const name of ["localStorage", "sessionStorage", "indexedDB"])
            Object.defineProperty(window, name, denied);
    """)
    page = opened(context, standin)
    expect(page.get_by_role("alert")).to_contain_text("Conversations are not kept")
    ask(page, "Hello")
    wait_for_answer(page)
    expect(page.locator(".markdown")).to_contain_text("Yes.")


# States.


def test_other_conversations_stay_usable_while_one_answers(page: Page, standin: StandIn) -> None:
    standin.answer, standin.tokens_per_s = "slow " * 60_000, 20
    ask(page, "Slow one")
    expect(page.locator(".markdown")).to_contain_text("slow slow")
    page.get_by_role("button", name="New chat", exact=True).first.click()
    standin.answer, standin.tokens_per_s = "Quick.", 1000
    ask(page, "Quick one")
    expect(page.locator(".markdown")).to_contain_text("Quick.")
    page.locator(".chats li button", has_text="Slow one").first.click()
    page.get_by_label("Message", exact=True).press("Escape")
    expect(page.get_by_text("Stopped.")).to_be_visible()


def test_failed_answers_are_not_sent_to_the_model(page: Page, standin: StandIn) -> None:
    standin.answer, standin.cut_after = "one two three four", 2
    ask(page, "Break")
    expect(page.get_by_role("alert")).to_be_visible()
    standin.cut_after = None
    ask(page, "Again")
    expect(page.locator(".markdown").last).to_contain_text("four")
    roles = [message["role"] for message in standin.asked[-1]["messages"]]
    assert roles == ["user"]  # the question without an answer is left out, too


def test_the_header_follows_the_server(page: Page, standin: StandIn) -> None:
    standin.is_ready = False
    page.evaluate("dispatchEvent(new Event('focus'))")
    expect(page.locator(".state.waiting")).to_contain_text("The engine restarts.")
    standin.is_ready = True
    page.evaluate("dispatchEvent(new Event('focus'))")
    expect(page.locator(".state.ready")).to_have_text(MODEL)


def test_a_phones_header_is_one_row_with_a_long_name(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    box = page.locator("header").bounding_box()
    assert box is not None
    assert box["height"] < 64
