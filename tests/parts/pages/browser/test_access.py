"""Every state of the playground at three widths and in both themes: axe, the keyboard, motion."""

from __future__ import annotations

import time
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.parts.pages.browser.conftest import shoot
from tests.parts.pages.browser.standin import StandIn
from tests.parts.pages.browser.test_instrument import violations
from tests.parts.pages.browser.test_limits import refused
from tests.parts.pages.browser.test_playground import ask, wait_for_answer
from tests.parts.pages.browser.test_real_answers import (
    EVERYTHING,
    context,
    opened,
    page,
    standin,
)

__all__ = ["context", "page", "standin"]  # fixtures
pytestmark = pytest.mark.browser

UNDER_A_DRAWER = ("landmark-one-main",)


def batch(number: int, status: str, done: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"batch_{number}{'0123456789abcdef' * 2}",
        "status": status,
        "endpoint": "/v1/chat/completions",
        "created_at": int(time.time()) - 5000 * number,
        "output_file_id": None,
        "error_file_id": None,
        "request_counts": {"total": 50_000, "completed": done, "failed": 12},
        "errors": None,
    } | more


BATCHES = [
    batch(1, "in_progress", 12_000),
    batch(2, "completed", 49_988, output_file_id="file-1", error_file_id="file-2"),
    batch(
        3,
        "failed",
        0,
        request_counts={"total": 0, "completed": 0, "failed": 0},
        errors={"data": [{"code": "invalid", "line": 2, "message": "It is no request: " * 9}]},
    ),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_state_shuts_anyone_out(
    context: BrowserContext, standin: StandIn, width: int, scheme: Any
) -> None:
    page = opened(context, standin)
    page.route(
        "**/v1/batches*", lambda route: route.fulfill(json={"object": "list", "data": BATCHES})
    )
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})

    def check(state: str, but: tuple[str, ...] = ()) -> None:
        shoot(page, f"access-{state}-{width}-{scheme}")
        assert violations(page, but=but) == [], state
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), state
        for dialog in page.get_by_role("dialog").all():
            assert dialog.evaluate("node => node.scrollWidth <= node.clientWidth"), state

    check("welcome")
    standin.thoughts, standin.answer = "I think. ", EVERYTHING
    page.get_by_role("button", name="See the tokens").click()
    wait_for_answer(page)
    expect(page.locator("math")).to_have_count(4)
    page.locator(".tile").nth(3).click()
    check("answer")
    page.get_by_role("button", name="Request & raw").click()
    for tab in ("LangChain", "Time"):
        page.get_by_role("tab", name=tab).click()
        check(tab)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("dialog").get_by_label("Question").fill("Which?")
    page.get_by_role("button", name="Ask both").click()
    expect(page.get_by_role("button", name="Keep this answer")).to_have_count(2)
    check("compare")
    page.keyboard.press("Escape")
    standin.refusals = [refused(429, "600")]
    ask(page, "Refused")
    expect(page.get_by_role("button", name="Now")).to_be_visible()
    check("refused")
    if width < 900:
        page.get_by_role("button", name="Chats", exact=True).click()
        check("chats", UNDER_A_DRAWER)
    page.get_by_role("button", name="Batches").click()
    expect(page.get_by_role("progressbar")).to_have_count(2)
    check("batches", UNDER_A_DRAWER)
    page.keyboard.press("Escape")
    if width < 900:
        page.keyboard.press("Escape")
    if width < 1100:
        page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_text("More fields").first.click()
    page.get_by_text("More tools").click()
    page.get_by_role("button", name="Add a function").click()
    expect(page.get_by_label("What it does")).to_be_visible()
    page.get_by_label("Make the answer follow this JSON schema").check()
    page.get_by_role("button", name="Example", exact=True).click()
    check("settings", UNDER_A_DRAWER)


# What can be used by a pointer; a tab list and a slider beside its field have one stop by design.
USABLE = """() => [...document.querySelectorAll(
    "a[href], button, input, select, textarea, summary, [tabindex]")].filter((each) =>
    each.checkVisibility() && !each.disabled && each.tabIndex >= 0)"""


def test_the_keyboard_reaches_everything(page: Page, standin: StandIn) -> None:
    standin.answer = EVERYTHING
    ask(page, "Everything")
    wait_for_answer(page)
    expect(page.locator("math")).to_have_count(4)
    page.get_by_role("button", name="Tokens").click()
    page.get_by_text("More fields").click()
    expect(page.get_by_label("Logit bias")).to_be_visible()
    count = page.evaluate(f"({USABLE})().length")
    page.evaluate("""() => {
        window.reached = new Set();
        document.addEventListener("focusin", (event) => window.reached.add(event.target));
        document.activeElement.blur();
    }""")
    for _ in range(count + 5):
        page.keyboard.press("Tab")
    missed = page.evaluate(
        f"({USABLE})().filter((each) => !window.reached.has(each)).map((each) => each.outerHTML)"
    )
    assert missed == []
    shown = page.locator(".chats li .deed").first
    shown.focus()
    assert shown.evaluate("node => getComputedStyle(node).opacity") == "1"


def test_nothing_moves_for_those_who_asked_for_that(page: Page, standin: StandIn) -> None:
    page.emulate_media(reduced_motion="reduce")
    standin.until = 0
    ask(page, "Wait")
    expect(page.locator(".waiting")).to_be_visible()
    assert page.evaluate("document.getAnimations().length") == 0
    standin.until = None
    wait_for_answer(page)
