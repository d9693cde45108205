"""What Chromium does for each token that the playground draws, counted: no clock is read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, expect

from tests.parts.pages.browser.standin import MODEL, StandIn

_ANSWER = (Path(__file__).parent / "everything.md").read_text(encoding="utf-8")
_KEEP = "kept => localStorage.setItem('harmonium.conversations', JSON.stringify([kept]))"
_IS_DRAWN = """word => {
  const turn = [...document.querySelectorAll(".turn")].at(-1);
  return turn.querySelector(".markdown")?.textContent.trim().endsWith(word);
}"""
_FIRST = 4  # tokens, before it is counted
TOKENS = 10  # that are counted


@dataclass(frozen=True)
class Work:
    """For `TOKENS` tokens together."""

    calls: int  # of functions of the page
    restyled: int  # elements
    laid_out: int  # objects whose place was looked for


def work(browser: Browser, standin: StandIn, exchanges: int) -> Work:
    """Draw tokens in a conversation of that length, each once the one before is there."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(60_000)
    page.goto(standin.url)
    page.evaluate(_KEEP, conversation(exchanges))
    page.reload()
    page.get_by_role("status").first.get_by_text(MODEL).wait_for()
    words = [f"w{number}" for number in range(_FIRST + TOKENS)]
    standin.answer, standin.until = " ".join([*words, "end"]), _FIRST
    field = page.get_by_label("Message", exact=True)
    field.fill("And now?")
    field.press("Enter")
    expect(page.locator(".turn.assistant")).to_have_count(exchanges + 1)
    page.wait_for_function(_IS_DRAWN, arg=words[_FIRST - 1])
    profiler = page.context.new_cdp_session(page)
    profiler.send("Profiler.enable")
    profiler.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": False})
    browser.start_tracing(page=page, categories=["devtools.timeline"])
    for number in range(_FIRST, _FIRST + TOKENS):
        standin.until = number + 1
        page.wait_for_function(_IS_DRAWN, arg=words[number], polling=20)
    events = json.loads(browser.stop_tracing())["traceEvents"]
    scripts = profiler.send("Profiler.takePreciseCoverage")["result"]
    standin.until = None
    page.get_by_role("button", name="Send", exact=True).wait_for()
    page.close()
    told = [event["args"] for event in events if event["name"] in ("Layout", "UpdateLayoutTree")]
    return Work(
        calls=sum(
            function["ranges"][0]["count"]
            for script in scripts
            if script["url"].startswith(standin.url)
            for function in script["functions"]
        ),
        restyled=sum(args.get("elementCount", 0) for args in told),
        laid_out=sum(args.get("beginData", {}).get("dirtyObjects", 0) for args in told),
    )


def conversation(exchanges: int) -> dict[str, Any]:
    """A kept conversation with that many answers of tables, code and formulas."""
    turns: list[dict[str, Any]] = []
    for number in range(exchanges):
        turns.append({"role": "user", "text": f"Question {number}"})
        turns.append({"role": "assistant", "text": _ANSWER, "calls": []})
    return {"id": "long", "title": "Long", "turns": turns, "settings": {}}
