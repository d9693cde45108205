"""Frames per second of the playground while an answer streams into a long conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from tests.parts.pages.browser.standin import MODEL

_ANSWER = (Path(__file__).parent / "everything.md").read_text(encoding="utf-8")
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


def frames(page: Page, url: str, exchanges: int, seconds: float) -> dict[str, Any]:
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
