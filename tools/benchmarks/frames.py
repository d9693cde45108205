"""`make bench-frames`: frames per second of the playground while an answer streams, in Chromium.

The conversation holds `EXCHANGES` exchanges. A stand-in streams an answer with tables, code and
formulas at `TOKENS_S`. Frames are counted by `requestAnimationFrame` for `SECONDS`. The last line
is one JSON document. The load of the machine is part of it: a busy machine draws fewer frames.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tests.browser.standin import MODEL, StandIn, running
from tools.benchmarks.ending import end_as_by_ctrl_c
from tools.benchmarks.report import Row, show

EXCHANGES = (0, 50, 200)
TOKENS_S = 300
SECONDS = 6
MIN_FPS = 50
_ANSWER = (Path("tests/browser") / "everything.md").read_text(encoding="utf-8")
_KEEP = "kept => localStorage.setItem('harmonium.conversations', JSON.stringify([kept]))"
_COUNT = """seconds => new Promise(tell => {
  const times = [];
  const last = () => [...document.querySelectorAll(".turn")].at(-1).textContent;
  const words = () => last().split(/\\s+/).length;
  const before = words();
  const note = time => {
    times.push(time);
    if (time - times[0] < seconds * 1000) return requestAnimationFrame(note);
    const gaps = times.slice(1).map((each, at) => each - times[at]);
    const took = (time - times[0]) / 1000;
    const words_s = (words() - before) / took;
    tell({fps: gaps.length / took, longest: Math.max(...gaps), words_s});
  };
  requestAnimationFrame(note);
})"""


def main() -> None:
    """Measure each length of conversation and print what was measured."""
    end_as_by_ctrl_c()
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise SystemExit("no Chromium here; install one, e.g. apt-get install chromium")
    flags = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
    rows: list[Row] = []
    with (
        running(StandIn(answer=_ANSWER * 40, tokens_per_s=TOKENS_S)) as standin,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=path, args=flags) as browser,
    ):
        for exchanges in EXCHANGES:
            with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
                found = frames(context.new_page(), standin.url, exchanges)
            case, load = f"{exchanges} exchanges, {TOKENS_S} tokens/s", os.getloadavg()[0]
            note = f"load {load:.1f}"
            rows += [
                Row(f"{case}: frames/s", found["fps"], "1/s", target=f">= {MIN_FPS}", note=note),
                Row(f"{case}: words on the page", found["words_s"], "1/s", note=note),
                Row(f"{case}: longest frame", found["longest"], "ms", note=note),
            ]
    show(rows)


def frames(page: Page, url: str, exchanges: int, seconds: float = SECONDS) -> dict[str, Any]:
    """Ask in a conversation of that length; return frames/s, the longest frame, words/s."""
    page.goto(url)
    page.evaluate(_KEEP, conversation(exchanges))
    page.reload()
    page.get_by_role("status").first.get_by_text(MODEL).wait_for()
    field = page.get_by_label("Message", exact=True)
    field.fill("And now?")
    field.press("Enter")
    page.locator(".turn.assistant").nth(exchanges).locator("table").first.wait_for()
    found: dict[str, Any] = page.evaluate(_COUNT, seconds)
    return found


def conversation(exchanges: int) -> dict[str, Any]:
    """A kept conversation with that many answers of tables, code and formulas."""
    turns: list[dict[str, Any]] = []
    for number in range(exchanges):
        turns.append({"role": "user", "text": f"Question {number}"})
        turns.append({"role": "assistant", "text": _ANSWER, "calls": []})
    return {"id": "long", "title": "Long", "turns": turns, "settings": {}}


if __name__ == "__main__":
    main()
