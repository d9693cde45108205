"""Draw docs/pictures/dashboard.svg: the panels of the Grafana dashboard, as Prometheus fills them.

Debian's Prometheus scrapes a server on nano that is asked mixed things for a while; every panel of
the first rows is what it answers to the panel's own expressions. Grafana itself is not needed.
"""

from __future__ import annotations

import html
import json
import math
import re
import subprocess
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from serving import free_port, serving

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "charts" / "harmonium" / "files" / "grafana-dashboard.json"
OUT = ROOT / "docs" / "pictures" / "dashboard.svg"
ROWS = ("Now", "Latency", "Load")
SECONDS, STEP_S, WARM_S = 150, 2, 10
UNIT_X, UNIT_Y = 50, 22  # pixels of a unit of Grafana's grid
COLOURS = ("#2f7d4f", "#c2762b", "#3566a8", "#8a4fa3", "#a12622", "#5a615b")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1d211e}.t{font-weight:600}"
    ".n{font-size:30px;font-weight:600;text-anchor:middle}.s{fill:#5a615b;font-size:11px}"
    ".e{text-anchor:end}path{fill:none;stroke-width:1.6;stroke-linejoin:round}"
)
VARIABLES = {"$model": ".*", "$__rate_interval": "20s", "$__range": "3m"}
QUESTIONS = ("What is nano?", "What can you do?", "How do I list the models?", "Hello!")


@contextmanager
def prometheus(target: str) -> Iterator[str]:
    """Prometheus before a server; its URL."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "prometheus.yml"
        job = {"job_name": "harmonium", "metrics_path": "/v1/metrics"}
        job["static_configs"] = [{"targets": [target.removeprefix("http://")]}]
        config.write_text(
            json.dumps({"global": {"scrape_interval": "2s"}, "scrape_configs": [job]})
        )
        address = f"127.0.0.1:{free_port()}"
        flags = [f"--config.file={config}", f"--web.listen-address={address}"]
        process = subprocess.Popen(
            ["prometheus", *flags, f"--storage.tsdb.path={folder}/data"], stderr=subprocess.DEVNULL
        )
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait()


def ask(url: str, until: float, number: int) -> None:
    """One caller, who sends one request after the other and a wrong one at times."""
    with httpx2.Client(base_url=url, timeout=120) as client:
        for count in range(10**6):
            if time.monotonic() > until:
                return
            text = QUESTIONS[(count + number) % len(QUESTIONS)]
            body = {"model": "nano", "messages": [{"role": "user", "content": text}]}
            if count % 7 == 6:
                client.post("/v1/chat/completions", json=body | {"temprature": 0})
            elif number % 3 == 2:
                client.post("/v1/messages", json=body | {"max_tokens": 200})
            else:
                client.post("/v1/chat/completions", json=body)
            time.sleep(0.1 * number)


def traffic(url: str) -> tuple[float, float]:
    """More callers come, and go again; when it began and ended."""
    began = time.time()
    begin = time.monotonic()
    callers = []
    for number in range(8):
        stay = SECONDS * (1 - number / 16)
        callers.append(threading.Thread(target=ask, args=(url, begin + stay, number)))
        callers[-1].start()
        time.sleep(SECONDS / 24)
    for caller in callers:
        caller.join()
    time.sleep(2 * STEP_S)
    return began, time.time()


def curves(
    url: str, panel: dict, span: tuple[float, float]
) -> list[tuple[str, list[tuple[float, float]]]]:
    """Each curve of a panel: its name and its points."""
    found = []
    for target in panel["targets"]:
        expression = target["expr"]
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        parameters = {"query": expression, "start": span[0], "end": span[1], "step": STEP_S}
        answer = (
            httpx2.get(f"{url}/api/v1/query_range", params=parameters).raise_for_status().json()
        )
        for series in answer["data"]["result"]:
            legend = re.sub(
                r"{{(\w+)}}",
                lambda m, of=series: of["metric"].get(m[1], ""),
                target["legendFormat"],
            )
            points = [(float(at), float(value)) for at, value in series["values"]]
            found.append((legend, [point for point in points if math.isfinite(point[1])]))
    return [(name, points) for name, points in found if points]


def worded(value: float, unit: str) -> str:
    """A figure in its unit, short."""
    if value == 0:
        return "0"
    if unit == "s":
        return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.{0 if value > 0.01 else 1}f} ms"
    if unit == "percentunit":
        return f"{value * 100:.{0 if value > 0.1 else 1}f} %"
    suffix = "/s" if unit == "reqps" else ""
    return f"{value:,.{0 if value >= 10 or value == int(value) else 1}f}{suffix}"


def panel_svg(panel: dict, found: list, span: tuple[float, float], top: float) -> list[str]:
    """A panel: its title, and a figure or its curves."""
    grid = panel["gridPos"]
    x, width, height = grid["x"] * UNIT_X + 4, grid["w"] * UNIT_X - 8, grid["h"] * UNIT_Y - 8
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    lines = [
        f'<rect x="{x}" y="{top}" width="{width}" height="{height}" rx="4" fill="#fff" '
        'stroke="#d8d9d2"/>'
    ]
    for index, part in enumerate(textwrap.wrap(panel["title"], width // 8)):
        y = top + 19 + 15 * index
        lines.append(f'<text class="t" x="{x + 10}" y="{y}">{html.escape(part)}</text>')
    if panel["type"] in ("stat", "gauge"):
        value = worded(found[0][1][-1][1], unit) if found else "–"
        middle = f'x="{x + width / 2}" y="{top + height / 2 + 18}"'
        return [*lines, f'<text class="n" {middle}>{value}</text>']
    return lines + curves_svg(
        found, unit, span, Box(x + 60, x + width - 10, top + 32, top + height - 30)
    )


@dataclass(frozen=True)
class Box:
    """Where curves are drawn, in pixels."""

    left: float
    right: float
    high: float
    low: float


def curves_svg(found: list, unit: str, span: tuple[float, float], box: Box) -> list[str]:
    """Three lines of a grid, the curves, and what each is called."""
    most = max((value for _, points in found for _, value in points), default=0) or 1
    lines, at = [], box.left
    for share in (0, 0.5, 1):
        y = box.low - (box.low - box.high) * share
        grid = f'd="M{box.left} {y}H{box.right}" stroke="#e6e7e2" style="stroke-width:1"'
        label = (
            f'<text class="s e" x="{box.left - 6}" y="{y + 4}">{worded(most * share, unit)}</text>'
        )
        lines += [f"<path {grid}/>", label]
    for (name, points), colour in zip(found, COLOURS, strict=False):
        places = []
        for when, value in points:
            x = box.left + (box.right - box.left) * (when - span[0]) / (span[1] - span[0])
            places.append(f"{x:.1f} {box.low - (box.low - box.high) * value / most:.1f}")
        mark = f'd="M{at} {box.low + 16}h12" stroke="{colour}" style="stroke-width:3"'
        text = f'<text class="s" x="{at + 16}" y="{box.low + 20}">{html.escape(name)}</text>'
        lines += [f'<path d="M{"L".join(places)}" stroke="{colour}"/>', f"<path {mark}/>", text]
        at += 34 + 6.4 * len(name)
    return lines


def drawn(url: str, span: tuple[float, float]) -> str:
    """The first rows of the dashboard, as SVG."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    wanted, lines, bottom, row = [], [], 0, ""
    for panel in panels:
        row = panel["title"] if panel["type"] == "row" else row
        if row in ROWS:
            wanted.append(panel)
    for panel in wanted:
        top = panel["gridPos"]["y"] * UNIT_Y + 10
        bottom = max(bottom, top + panel["gridPos"]["h"] * UNIT_Y)
        if panel["type"] == "row":
            lines.append(f'<text class="t" x="8" y="{top + 14}">{panel["title"]}</text>')
        else:
            lines += panel_svg(panel, curves(url, panel, span), span, top)
    size = f"0 0 {24 * UNIT_X} {bottom + 4}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}"><style>{STYLE}</style>'
    ground = '<rect width="100%" height="100%" fill="#f4f5f1"/>'
    return "\n".join([head, ground, *lines, "</svg>\n"])


if __name__ == "__main__":
    with serving() as (server, _):
        ask(server, time.monotonic() + WARM_S, 0)  # a server's first second is no picture of it
        with prometheus(server) as url:
            OUT.write_text(drawn(url, traffic(server)), encoding="utf-8")
