"""A real Chromium before a real server on nano; nothing else may be reached."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="`make browser` installs it")

from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from tests.e2e.conftest import Server, servers

SHOTS = Path(".cache/browser")
AXE = Path("parts/pages/source/node_modules/axe-core/axe.min.js")
expect.set_options(timeout=60_000)  # a busy machine
# Chromium asks its maker's hosts for one thing and another; here it may not.
_QUIET = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--font-render-hinting=none",  # pictures are compared with those of other machines
    "--disable-lcd-text",
    "--force-color-profile=srgb",
)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.fail("no Chromium here; install one, e.g. apt-get install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(_QUIET))
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def server(nano_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers(nano_cache, tmp_path_factory) as start:
        yield start()


@pytest.fixture
def page(browser: Browser, server: Server, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A first visit. A foreign host asked for, or a word on the console, fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    faults: list[str] = []

    def only_ours(route: Route) -> None:
        if route.request.url.startswith(server.url):
            route.continue_()
        else:
            faults.append(f"asked for {route.request.url}")
            route.abort()

    page.route("**/*", only_ours)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text))
    page.set_default_timeout(60_000)
    page.goto(server.url)
    yield page
    shoot(page, request.node.name)
    context.close()
    expected = getattr(request.node.get_closest_marker("console"), "args", ())
    assert [fault for fault in faults if not any(word in fault for word in expected)] == []


def shoot(page: Page, name: str) -> None:
    """Keep what a person would see now."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png")
