"""Record docs/pictures/killed.svg: the engine is killed while it answers, and the answer continues.

The frames are screenshots of the page on nano; a style sheet in the picture shows them in turn.
"""

from __future__ import annotations

import base64
import shutil
import time
from pathlib import Path
from typing import Any

from pages import opened, warm
from playwright.sync_api import Page, sync_playwright
from serving import serving

OUT = Path(__file__).parents[3] / "docs" / "pictures" / "killed.svg"
PAGE, WIDTH, HEIGHT = (900, 440), 900, 360  # the page, and what of it is shown
_SHOT: Any = {
    "type": "jpeg",
    "quality": 70,
    "animations": "disabled",
    "clip": {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT},
}
LAST_S = 4.0  # the whole answer is shown for so long
GIVE_UP_AFTER_S = 60


def frames(page: Page) -> list[tuple[float, bytes]]:
    """Pictures of the page, each with the time that it was first seen."""
    found: list[tuple[float, bytes]] = []
    shown = ""
    page.get_by_role("button", name="Kill the engine").click()
    began = time.monotonic()
    while time.monotonic() - began < GIVE_UP_AFTER_S:
        text = page.locator("main, header").all_inner_texts()
        if str(text) != shown:
            shown = str(text)
            found.append((time.monotonic() - began, page.screenshot(**_SHOT)))
        if page.locator(".survived").count() and page.locator(".figures").count():
            break
        page.wait_for_timeout(250)
    page.wait_for_timeout(300)
    return [*found, (time.monotonic() - began, page.screenshot(**_SHOT))]


def animated(found: list[tuple[float, bytes]]) -> str:
    """The pictures as one SVG that shows them in turn, for ever."""
    total = found[-1][0] + LAST_S
    images, rules = [], []
    for number, (start, picture) in enumerate(found):
        end = found[number + 1][0] if number + 1 < len(found) else total
        data = base64.b64encode(picture).decode()
        is_last = number == len(found) - 1
        begin, until = 100 * (start if number else 0) / total, 100 * end / total
        images.append(
            f'<image class="f f{number}" width="{WIDTH}" height="{HEIGHT}" '
            f'href="data:image/jpeg;base64,{data}"/>'
        )
        rules.append(
            f"@keyframes k{number} {{ 0%, {begin:.2f}% {{ opacity: 0 }} "
            f"{begin + 0.01:.2f}%, {until:.2f}% {{ opacity: 1 }} "
            f"{min(until + 0.01, 100):.2f}%, 100% {{ opacity: {is_last:d} }} }} "
            f".f{number} {{ animation: k{number} {total:.1f}s infinite; }}"
        )
    style = " ".join([".f { opacity: 0 }", *rules])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f"<title>The engine is killed while it answers, and the answer continues</title>"
        f"<style>{style}</style>{''.join(images)}</svg>\n"
    )


if __name__ == "__main__":
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with serving(more={"NIM_ALLOW_ENGINE_KILL": "1"}) as (url, _), sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        warm(url)
        found = frames(opened(chromium, url, height=PAGE[1], width=PAGE[0]))
        chromium.close()
    OUT.write_text(animated(found), encoding="utf-8")
