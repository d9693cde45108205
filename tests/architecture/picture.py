"""The picture of rooms and arrows in docs/architecture.md, drawn from the imports.

`python -m tests.architecture.picture` draws it anew. A room is a folder of service/ or engines/, a
file that stands loose in them, or the whole of auth/, profiles/ and parts/. Each stands above all
that it imports, service/ on the left and engines/ on the right. An arrow that a longer way implies
is counted and not drawn.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import grimp

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "architecture.md"
PICTURE: Final = ROOT / "docs" / "pictures" / "rooms.svg"
BEGIN, END = "<!-- picture: make docs -->\n", "<!-- end of the picture -->\n"
PACKAGES: Final = ("parts", "service", "engines", "auth", "profiles")
DIVIDED: Final = ("service", "engines")  # packages that are drawn room by room

_WIDTH, _ROW, _BOX = 1240, 66, 30
_SIDES: Final = {"service": (16, 620), "engines": (660, 1224)}  # from and to, of those side by side
_COLOURS: Final = {
    "service": "#cfe6d4",
    "engines": "#d5e0f2",
    "parts": "#f6d9d3",
    "auth": "#f3e3c3",
    "profiles": "#eadcf0",
}
_STYLE: Final = (
    "text{font:14px system-ui,sans-serif;text-anchor:middle;fill:#1d211e}"
    "path{fill:none;stroke:#6b756d;stroke-opacity:.65}rect{stroke:#8a938b}"
    ".title{font-weight:600;font-size:17px}"
)


def drawn() -> tuple[str, str]:
    """The picture, as SVG, and the part of the page between the marks."""
    rooms = arrows()
    reduced = {room: to - _implied(rooms, to) for room, to in rooms.items()}
    num_arrows, num_drawn = (sum(map(len, each.values())) for each in (rooms, reduced))
    own = {room: to for room, to in rooms.items() if _package_of(room) == "service"}
    num_own = sum(to in own for each in own.values() for to in each)
    counts = (
        f"{len(rooms)} rooms and {num_arrows} arrows, of which {num_drawn} are drawn and the "
        f"others follow from them; {len(own)} rooms and {num_own} arrows are service/'s own. No "
        "circle of rooms, and none of files."
    )
    alt = "The rooms of service/ and engines/, each above those that it imports"
    part = f"[![{alt}](pictures/{PICTURE.name})](pictures/{PICTURE.name})\n\n{counts}\n"
    return _svg(rooms, reduced), part


def _svg(rooms: Mapping[str, set[str]], reduced: Mapping[str, set[str]]) -> str:
    """Rooms in rows, the lowest of which import nothing, and the arrows between them."""
    rows: dict[int, list[str]] = {}
    for room in sorted(rooms):
        rows.setdefault(_height(rooms, room), []).append(room)
    places: dict[str, tuple[float, float]] = {}
    for height in sorted(rows, reverse=True):
        y = _ROW * (max(rows) - height) + 56
        for package, (left, right) in _SIDES.items():
            beside = [room for room in rows[height] if _side_of(room) == package]
            beside.sort(key=lambda room: _middle(reduced, places, room))
            step = (right - left) / max(len(beside), 1)
            for index, room in enumerate(beside):
                places[room] = (left + step * (index + 0.5), y)
    lines = [
        _arrow(places[room], places[to]) for room in sorted(reduced) for to in sorted(reduced[room])
    ]
    boxes = [_box(room, *places[room]) for room in sorted(places)]
    titles = [
        f'<text class="title" x="{(left + right) / 2}" y="24">{package}/</text>'
        for package, (left, right) in _SIDES.items()
    ]
    size = f"0 0 {_WIDTH} {_ROW * max(rows) + 90}"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}"><style>{_STYLE}</style>',
        '<rect width="100%" height="100%" rx="8" fill="#fbfbf9" stroke="none"/>',
        *lines, *boxes, *titles, "</svg>\n",
    ])  # fmt: skip


def _arrow(above: tuple[float, float], below: tuple[float, float]) -> str:
    (x, y), (to_x, to_y) = above, below
    y, to_y = y + _BOX / 2, to_y - _BOX / 2
    middle = (y + to_y) / 2
    curve = f"{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}"
    return f'<path d="M{x:.0f} {y:.0f}C{curve}m-4 -6l4 6l4 -6"/>'


def _box(room: str, x: float, y: float) -> str:
    package, _, name = room.partition("/")
    text = html.escape(name or f"{package}/")
    width = 9 * len(text) + 18
    corner = f'x="{x - width / 2:.0f}" y="{y - _BOX / 2:.0f}" width="{width}" height="{_BOX}"'
    return (
        f'<rect {corner} rx="6" fill="{_COLOURS[package]}"/>'
        f'<text x="{x:.0f}" y="{y + 5:.0f}">{text}</text>'
    )


def _height(rooms: Mapping[str, set[str]], room: str) -> int:
    return 1 + max((_height(rooms, to) for to in rooms[room]), default=-1)


def _side_of(room: str) -> str:
    """Where it stands: what both sides use lies below service/."""
    package = _package_of(room)
    return package if package in _SIDES else "service"


def _middle(
    reduced: Mapping[str, set[str]], places: Mapping[str, tuple[float, float]], room: str
) -> float:
    """Where those that import it stand, so that lines cross little."""
    above = [places[other][0] for other, to in reduced.items() if room in to and other in places]
    return sum(above) / len(above) if above else 0


def arrows() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    found: dict[str, set[str]] = {}
    for module in graph.modules - set(PACKAGES):
        room = _room_of(module)
        to = {_room_of(other) for other in graph.find_modules_directly_imported_by(module)}
        found.setdefault(room, set()).update(to - {room})
    return found


def _room_of(module: str) -> str:
    package, *rest = module.split(".")
    if package not in DIVIDED or not rest:
        return package
    is_folder = (ROOT / package / rest[0]).is_dir()
    return f"{package}/{rest[0]}" + ("" if is_folder else ".py")


def _implied(rooms: dict[str, set[str]], to: set[str]) -> set[str]:
    """All that can be reached behind the first steps; raises for a circle."""
    behind: set[str] = set()
    for room in to:
        behind |= _reached(rooms, room, ())
    return behind


def _reached(rooms: dict[str, set[str]], room: str, way: tuple[str, ...]) -> set[str]:
    if room in way:
        raise ValueError(f"a circle of rooms: {' -> '.join((*way, room))}")
    reached = set(rooms[room])
    for to in rooms[room]:
        reached |= _reached(rooms, to, (*way, room))
    return reached


def _package_of(room: str) -> str:
    return room.partition("/")[0]


def page_with(picture: str) -> str:
    """The whole page with this picture."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{picture}{END}{after}"


if __name__ == "__main__":
    svg, part = drawn()
    PICTURE.write_text(svg)
    PAGE.write_text(page_with(part))
