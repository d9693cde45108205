"""One answer with everything looks as it did when a person last looked at it."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.parts.pages.browser import pictures
from tests.parts.pages.browser.standin import StandIn
from tests.parts.pages.browser.test_playground import ask, wait_for_answer
from tests.parts.pages.browser.test_real_answers import EVERYTHING, opened, standin

__all__ = ["standin"]  # a fixture
pytestmark = pytest.mark.browser


def answered(browser: Browser, standin: StandIn, width: int, scheme: Any) -> Page:
    """The answer with everything, in the kept pictures' fonts, on a page as high as it is."""
    context = browser.new_context(
        viewport={"width": width, "height": 2600}, color_scheme=scheme, bypass_csp=True
    )
    context.set_default_timeout(60_000)
    standin.answer = EVERYTHING
    page = opened(context, standin)
    pictures.use_kept_fonts(page)
    ask(page, "Show me everything")
    wait_for_answer(page)
    expect(page.locator("math")).to_have_count(4)
    expect(page.locator(".hljs-keyword").first).to_be_visible()
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_answer_looks_as_it_did(
    browser: Browser, standin: StandIn, width: int, scheme: str
) -> None:
    page = answered(browser, standin, width, scheme)
    pictures.check(browser, page.locator(".markdown"), f"everything-{width}-{scheme}")
    page.context.close()


def test_torn_numbers_in_a_table_are_seen(
    browser: Browser, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the comparison is for: one line of CSS once tore every number of a table."""
    monkeypatch.delenv("PICTURES", raising=False)
    page = answered(browser, standin, 390, "light")
    page.add_style_tag(content=".markdown td { word-break: break-all; min-width: 0 !important; }")
    with pytest.raises(AssertionError, match=r"pixels differ.*differs-everything-390-light\.png"):
        pictures.check(browser, page.locator(".markdown"), "everything-390-light")
    page.context.close()
