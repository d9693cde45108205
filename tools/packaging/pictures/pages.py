"""Take docs/pictures/{playground,catalogue}.png: the pages in a real Chromium, on nano."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx2
from playwright.sync_api import Browser, Page, expect, sync_playwright
from serving import serving

OUT = Path(__file__).parents[3] / "docs" / "pictures"
WIDTH = 1180
expect.set_options(timeout=60_000)


def playground(browser: Browser, url: str) -> None:
    """A question, and one that takes a tool; low, for README's first screen."""
    page = opened(browser, url, height=645)
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Calculator").check()
    ask(page, "What is nano?")
    ask(page, "Please calculate 17 * 23")
    expect(page.get_by_role("article", name="Assistant").last).to_contain_text("391")
    page.screenshot(path=OUT / "playground.png")


def catalogue(browser: Browser, url: str) -> None:
    """What is served, and its plots after some requests."""
    page = opened(browser, f"{url}/docs", height=760)
    summary = page.get_by_text("/v1/chat/completions", exact=True)
    summary.click()
    run = page.get_by_role("button", name="Run here")
    for _ in range(6):
        run.click()
        expect(page.get_by_label("Answer", exact=True)).to_contain_text("200 after")
        page.wait_for_timeout(2500)  # the plots ask every two seconds
    summary.click()
    page.get_by_text("Why this one").evaluate("row => row.scrollIntoView()")
    page.evaluate("scrollBy(0, -60)")  # below what stays at the top
    page.screenshot(path=OUT / "catalogue.png")


def warm(url: str) -> None:
    """A server's first answers are slower than what follows."""
    body = {"model": "nano", "messages": [{"role": "user", "content": "Hello!"}]}
    for _ in range(5):
        httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60).raise_for_status()


def opened(browser: Browser, url: str, height: int, width: int = WIDTH) -> Page:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    page.goto(url)
    expect(page.get_by_role("status").first).to_have_text("nano")
    expect(page.locator(".facts, .card").first).to_be_visible()
    return page


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


if __name__ == "__main__":
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with serving() as (url, _), sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        warm(url)
        playground(chromium, url)
        catalogue(chromium, url)
        chromium.close()
