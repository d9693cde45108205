"""The list of chats with none, one and many: titles, days, the foot, and a way back."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.parts.pages.browser.conftest import shoot
from tests.parts.pages.browser.standin import StandIn
from tests.parts.pages.browser.test_instrument import violations
from tests.parts.pages.browser.test_playground import ask, wait_for_answer
from tests.parts.pages.browser.test_real_answers import (
    context,
    opened,
    standin,
    wait_until_kept,
)

__all__ = ["context", "standin"]  # fixtures
pytestmark = pytest.mark.browser

LONG = "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen and more"


def seeded(context: BrowserContext, standin: StandIn, count: int) -> Page:
    """A page that already has so many chats, the newest from now, each half a day older."""
    page = opened(context, standin)
    page.evaluate(
        """([count, long]) => {
            const chats = [...Array(count).keys()].map((n) => ({
                id: `c${n}`,
                title: n % 7 === 6 ? long : `Conversation number ${n} about attention`,
                touched: Date.now() - n * 43_200_000,
                settings: {},
                turns: [
                    { role: "user", text: `Question ${n}` },
                    { role: "assistant", text: "Yes.", calls: [], finish: "stop" },
                ],
            }));
            localStorage.setItem("harmonium.conversations", JSON.stringify(chats));
        }""",
        [count, LONG],
    )
    page.reload()
    expect(page.locator(".chats li")).to_have_count(max(count, 1))
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.parametrize("count", [0, 1, 200])
def test_the_list_has_room_for_its_titles(
    context: BrowserContext, standin: StandIn, count: int, width: int, scheme: Any
) -> None:
    page = seeded(context, standin, count)
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    if width < 900:
        page.get_by_role("button", name="Chats", exact=True).click()
    shoot(page, f"chats-{count}-{width}-{scheme}")
    rows = page.locator(".chats li")
    title = rows.first.locator("button:first-child").bounding_box()
    row = rows.first.bounding_box()
    assert title is not None
    assert row is not None
    assert title["width"] >= row["width"] - (0 if width > 900 else 100)
    expect(page.get_by_role("button", name="Export")).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    but = ("landmark-one-main",) if width < 900 else ()  # the drawer lies over it
    assert violations(page, but=but) == []


def test_chats_stand_under_their_days_and_one_that_is_asked_goes_up(
    context: BrowserContext, standin: StandIn
) -> None:
    page = seeded(context, standin, 200)
    days = page.locator(".chats h2")
    names = ["Today", "Yesterday", "Last 7 days", "Last 30 days", "Older"]
    expect(days).to_have_text(names)
    page.get_by_role("button", name="Conversation number 120 about attention", exact=True).click()
    ask(page, "Once more")
    wait_for_answer(page)
    today = page.get_by_role("region", name="Today").get_by_role("listitem")
    expect(today.first).to_contain_text("number 120")
    expect(days).to_have_text(names)


def test_all_chats_are_deleted_and_brought_back(context: BrowserContext, standin: StandIn) -> None:
    page = seeded(context, standin, 200)
    rows = page.locator(".chats li")
    page.get_by_role("button", name="Delete all").click()
    expect(page.get_by_text("Deleted 200 chats.")).to_be_visible()
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Undo").click()
    expect(rows).to_have_count(200)
    wait_until_kept(page, "Conversation number 199 about")
    page.reload()
    expect(rows).to_have_count(200)
