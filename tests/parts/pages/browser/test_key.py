"""Where keys are on, the page asks for one, and keeps it in this tab only."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.conftest import Server, servers
from tests.parts.pages.browser.conftest import shoot

pytestmark = pytest.mark.browser

KEY = "sk-a-key-of-the-browser-tests"


@pytest.fixture(scope="module")
def locked(nano_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that wants a key."""
    command = [str(Path(sys.executable).parent / "harmonium"), "serve"]
    with servers(nano_cache, tmp_path_factory) as start:
        yield start([*("env", f"NIM_API_KEYS={KEY}"), *command])
    assert "NIM_API_KEYS" not in os.environ


def test_a_key_is_asked_for_and_kept_in_this_tab(browser: Browser, locked: Server) -> None:
    server = locked
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url)
    expect(page.get_by_role("status")).to_have_text("A key is needed.")
    expect(page.get_by_text("First enter an API key")).to_be_visible()
    expect(page.get_by_label("API key")).to_be_focused()
    page.get_by_label("API key").fill("wrong")
    page.get_by_label("API key").press("Tab")
    expect(page.get_by_role("status")).to_have_text("This key is not known.")
    shoot(page, "test_a_key_is_asked_for")
    page.get_by_label("API key").fill(KEY)
    page.get_by_label("API key").press("Tab")
    expect(page.get_by_role("status")).to_have_text("nano")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.get_by_role("button", name="What is nano?").click()
    expect(page.get_by_role("article", name="Assistant")).to_contain_text("demonstration")
    expect(page.get_by_role("button", name="Request & raw")).to_be_visible()
    page.get_by_role("button", name="Request & raw").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("Authorization: Bearer YOUR_KEY")
    kept = page.evaluate("JSON.stringify(localStorage)")
    assert KEY not in kept
    page.reload()
    expect(page.get_by_role("status")).to_have_text("nano")
    other = context.new_page()
    other.goto(server.url)
    expect(other.get_by_role("status")).to_have_text(re.compile("A key is needed"))
    context.close()


def test_the_catalogue_tells_nothing_without_a_key(browser: Browser, locked: Server) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{locked.url}/docs")
    expect(page.get_by_role("status")).to_have_text("A key is needed.")
    expect(page.get_by_role("heading", name="Routes")).to_be_hidden()
    shoot(page, "test_the_catalogue_tells_nothing_without_a_key")
    page.get_by_label("API key").fill(KEY)
    page.get_by_label("API key").press("Tab")
    expect(page.locator(".card")).to_contain_text("native-cpu")
    page.get_by_text("/v1/models", exact=True).click()
    code = page.locator(".example code").first
    expect(code).to_contain_text("Authorization: Bearer YOUR_KEY")
    expect(code).not_to_contain_text(KEY)
    context.close()
