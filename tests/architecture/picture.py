"""The picture of rooms and arrows in docs/architecture.md, drawn from the imports.

`python -m tests.architecture.picture` draws it anew. A room is a folder of service/ or engines/, a
file that stands loose in them, or the whole of auth/ and profiles/. An arrow that a longer way
implies is counted and not drawn.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import grimp

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- picture: make docs -->\n", "<!-- end of the picture -->\n"
PACKAGES: Final = ("service", "engines", "auth", "profiles")
DIVIDED: Final = ("service", "engines")  # packages that are drawn room by room


def drawn() -> str:
    """The part of the page between the marks."""
    rooms = arrows()
    reduced = {room: to - _implied(rooms, to) for room, to in rooms.items()}
    lines = ["```mermaid", "flowchart TD"]
    for package in PACKAGES:
        inside = [room for room in sorted(rooms) if _package_of(room) == package]
        if package not in DIVIDED:
            lines.append(f'  {_id(package)}["{package}/"]')
            continue
        lines.append(f'  subgraph in_{package} ["{package}/"]')
        lines += [f'    {_id(room)}["{room.partition("/")[2] or room}"]' for room in inside]
        lines.append("  end")
    lines += [
        f"  {_id(room)} --> {_id(to)}" for room in sorted(reduced) for to in sorted(reduced[room])
    ]
    num_arrows, num_drawn = (sum(map(len, each.values())) for each in (rooms, reduced))
    own = {room: to for room, to in rooms.items() if _package_of(room) == "service"}
    num_own = sum(to in own for each in own.values() for to in each)
    counts = (
        f"{len(rooms)} rooms and {num_arrows} arrows, of which {num_drawn} are drawn and the "
        f"others follow from them; {len(own)} rooms and {num_own} arrows are service/'s own. No "
        "circle of rooms, and none of files."
    )
    return "\n".join([*lines, "```", "", counts, ""])


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


def _id(room: str) -> str:
    return re.sub(r"\W", "_", room)


def page_with(picture: str) -> str:
    """The whole page with this picture."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{picture}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with(drawn()))
