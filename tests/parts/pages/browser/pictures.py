"""Compares what the browser shows with a picture that was looked at and kept."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page

from tests.parts.pages.browser.conftest import SHOTS

KEPT = Path(__file__).parent / "pictures"
FONTS = Path("parts/pages/source/node_modules/dejavu-fonts-ttf/ttf")
# Every machine draws with the same fonts; what may differ is how edges are smoothed.
_FACES = (
    ("Sans", "DejaVuSans.ttf", "normal", "normal"),
    ("Sans", "DejaVuSans-Bold.ttf", "bold", "normal"),
    ("Sans", "DejaVuSans-Oblique.ttf", "normal", "italic"),
    ("Mono", "DejaVuSansMono.ttf", "normal", "normal"),
    ("Mono", "DejaVuSansMono-Bold.ttf", "bold", "normal"),
    ("Mono", "DejaVuSansMono-Oblique.ttf", "normal", "italic"),
    ("Math", "DejaVuMathTeXGyre.ttf", "normal", "normal"),
)
_STYLE = """
:root { font-family: "Kept Sans" !important; }
pre, code, .code { font-family: "Kept Mono" !important; }
math { font-family: "Kept Math" !important; }
"""
# A pixel differs where a channel is off by more than smoothing does; returns the share of such
# pixels, and the three pictures beside each other: kept, shown, and what differs in red.
_COMPARE = """async ([kept, shown]) => {
  const pixels = async (data) => {
    const image = new Image();
    image.src = `data:image/png;base64,${data}`;
    await image.decode();
    return image;
  };
  const [a, b] = [await pixels(kept), await pixels(shown)];
  const [width, height] = [Math.max(a.width, b.width), Math.max(a.height, b.height)];
  const canvas = Object.assign(document.createElement("canvas"), { width: 3 * width, height });
  const on = canvas.getContext("2d");
  on.drawImage(a, 0, 0);
  on.drawImage(b, width, 0);
  const left = on.getImageData(0, 0, width, height);
  const right = on.getImageData(width, 0, width, height);
  const differs = on.createImageData(width, height);
  let count = 0;
  for (let at = 0; at < left.data.length; at += 4) {
    let off = 0;
    for (let channel = 0; channel < 4; channel++)
      off = Math.max(off, Math.abs(left.data[at + channel] - right.data[at + channel]));
    const grey = 255 - (255 - right.data[at]) / 4;
    differs.data.set(off > 64 ? [255, 0, 0, 255] : [grey, grey, grey, 255], at);
    count += off > 64;
  }
  on.putImageData(differs, 2 * width, 0);
  return [count / (width * height), canvas.toDataURL("image/png").split(",")[1]];
}"""


def use_kept_fonts(page: Page) -> None:
    """Draw with the fonts that the kept pictures have; the page's policy must be bypassed."""
    faces = "".join(
        f'@font-face {{ font-family: "Kept {family}"; font-weight: {weight}; '
        f'font-style: {style}; src: url("data:font/ttf;base64,{_read(FONTS / file)}"); }}\n'
        for family, file, weight, style in _FACES
    )
    page.add_style_tag(content=faces + _STYLE)
    page.evaluate("Promise.all([...document.fonts].map((face) => face.load()))")


def check(browser: Browser, shown: Locator, name: str) -> None:
    """Fail where more than one pixel in a thousand differs, and keep a picture of what does.

    PICTURES=new keeps what is shown as the picture to compare with.
    """
    got: bytes = shown.screenshot(animations="disabled")
    kept = KEPT / f"{name}.png"
    if os.environ.get("PICTURES") == "new":
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(got)
        return
    page = browser.new_page()
    answer: tuple[float, Any] = page.evaluate(
        _COMPARE, [_read(kept), base64.b64encode(got).decode()]
    )
    page.close()
    share, picture = answer
    beside = SHOTS / f"differs-{name}.png"
    if share > 0.001:
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(base64.b64decode(picture))
    assert share <= 0.001, (
        f"{share:.2%} of the pixels differ from {kept}; {beside} shows kept, shown and difference. "
        "Where the new one is right: PICTURES=new make browser"
    )


def _read(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
