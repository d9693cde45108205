"""`make bench-pages`: how soon a person can use the pages, and what they weigh, in a real Chromium.

A visit is a first one: nothing is cached. A page is interactive when what it is for can be done: in
the playground a question be typed and sent (the box is there and the model known), in the catalogue
a route be opened. Where a task of more than 50 ms follows within two seconds, its end counts. Each
case is visited `VISITS` times; the figures are medians, and the last line is one JSON document.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from tools.benchmarks.ending import end_as_by_ctrl_c
from tools.benchmarks.report import Row, median, show
from tools.benchmarks.startup import serving

VISITS = 5
QUIET_MS = 2000
MAX_KILOBYTES = 100
# What must be there before a person can do what the page is for.
PAGES = {"playground": ("", ".composer textarea", ".state.ready"), "catalogue": ("docs", ".route")}
_WATCH = """selectors => {
  window.longTasks = [];
  const note = list => list.getEntries().forEach(
    ({startTime, duration}) => longTasks.push([startTime, startTime + duration]));
  new PerformanceObserver(note).observe({type: "longtask", buffered: true});
  window.interactive = new Promise(tell => {
    const look = () => {
      if (selectors.every(each => document.querySelector(each))) tell(performance.now());
      else requestAnimationFrame(look);
    };
    look();
  });
}"""
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


@dataclass(frozen=True)
class Conditions:
    """What the visitor's machine and network are like."""

    name: str
    cpu_slowdown: int = 1
    bits_s: float = 0  # 0: as quick as the loopback
    round_trip_ms: float = 0


@dataclass(frozen=True)
class Visit:
    """One first visit."""

    painted_ms: float
    interactive_ms: float
    longest_task_ms: float
    kilobytes: float


CONDITIONS = (
    Conditions("this machine"),
    Conditions("CPU 4 times slower", cpu_slowdown=4),
    # What Lighthouse takes for a phone on a slow 4G.
    Conditions("CPU 4 times slower, 1.6 Mbit/s, 150 ms", 4, 1.6e6, 150),
)


def main() -> None:
    """Visit each page in each condition and print what was measured."""
    end_as_by_ctrl_c()
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise SystemExit("no Chromium here; install one, e.g. apt-get install chromium")
    flags = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
    with (
        tempfile.TemporaryDirectory() as scratch,
        serving(Path(scratch)) as url,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=path, args=flags) as browser,
    ):
        rows: list[Row] = []
        for page, (at, *selectors) in PAGES.items():
            for conditions in CONDITIONS:
                visit(browser, f"{url}/{at}", selectors, conditions)  # the server's own first time
                visits = [
                    visit(browser, f"{url}/{at}", selectors, conditions) for _ in range(VISITS)
                ]
                rows += rows_of(f"{page}, {conditions.name}", visits)
    show(rows)


def visit(browser: Browser, url: str, needs: Sequence[str], conditions: Conditions) -> Visit:
    """Open a page with an empty cache; wait until it can be used, and is quiet after that."""
    with browser.new_context() as context:
        page = context.new_page()
        weights = limited(context.new_cdp_session(page), conditions)
        page.add_init_script(f"({_WATCH})({list(needs)!r})")
        page.goto(url)
        interactive = page.evaluate("interactive")
        page.wait_for_timeout(QUIET_MS)
        if "textarea" in needs[0]:
            check_that_it_takes(page, "Hello")
        tasks = [task for task in page.evaluate("longTasks") if task[0] < interactive + QUIET_MS]
        return Visit(
            painted_ms=page.evaluate(_PAINTED),
            interactive_ms=max([interactive, *(end for _, end in tasks)]),
            longest_task_ms=max((end - begin for begin, end in tasks), default=0),
            kilobytes=sum(weights) / 1024,
        )


def limited(session: CDPSession, conditions: Conditions) -> list[float]:
    """Slow the page's CPU and network down; return the sizes of what will have come, in bytes."""
    weights: list[float] = []

    def note(event: dict[str, Any]) -> None:
        weights.append(event["encodedDataLength"])

    session.on("Network.loadingFinished", note)
    session.send("Network.enable")
    session.send("Emulation.setCPUThrottlingRate", {"rate": conditions.cpu_slowdown})
    if conditions.bits_s:
        rate = conditions.bits_s / 8
        session.send(
            "Network.emulateNetworkConditions",
            {
                "offline": False,
                "latency": conditions.round_trip_ms,
                "downloadThroughput": rate,
                "uploadThroughput": rate,
            },
        )
    return weights


def check_that_it_takes(page: Page, text: str) -> None:
    """Type without a click: the box has the focus. Raises RuntimeError where it took nothing."""
    page.keyboard.type(text)
    taken = page.locator(".composer textarea").input_value()
    if taken != text or page.locator(".composer button.main:enabled").count() != 1:
        raise RuntimeError(f"the message box holds {taken!r} after {text!r} was typed")


def rows_of(case: str, visits: Sequence[Visit]) -> list[Row]:
    """The figures of one page in one condition."""
    return [
        Row(f"{case}: first paint", median([each.painted_ms for each in visits]), "ms"),
        Row(f"{case}: interactive", median([each.interactive_ms for each in visits]), "ms"),
        Row(f"{case}: longest task", median([each.longest_task_ms for each in visits]), "ms"),
        Row(
            f"{case}: came over the network",
            median([each.kilobytes for each in visits]),
            "KiB",
            target=f"<= {MAX_KILOBYTES}",
        ),
    ]


if __name__ == "__main__":
    main()
