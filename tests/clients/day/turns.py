"""What is asked of an agent during a day, and what its user must read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.clients.day.files import PDF, PNG
from tests.clients.day.model import STORY

FACTS = (
    "the harbour master is Ilse",
    "the Albatros draws four metres",
    "berth 9 is closed on Fridays",
)
RECALLED = " ".join(f"Fact: {fact}." for fact in FACTS)
UNREAD = "[image/png, 157 bytes: this model reads text only]"


@dataclass(frozen=True)
class Turn:
    """A request of the user's; `says` is in the answer to it."""

    task: str
    says: str
    is_struck: bool = False  # the engine is killed while it is answered


def prepare(folder: Path) -> None:
    """The files of the day."""
    (folder / "quay.png").write_bytes(PNG)
    (folder / "chart.pdf").write_bytes(PDF)
    (folder / "notes.txt").write_text("The tide turns at six.\n")


def morning(folder: Path, pdf: str, odd: dict[str, str]) -> list[Turn]:
    """20 turns. `pdf`: what the agent makes of a PDF; `odd`: of the odd results of tools."""
    told = [Turn(f"Fact: {fact}.", "Noted.") for fact in FACTS]
    return [
        *told,
        Turn(f"look {folder}/quay.png", UNREAD),
        Turn(f"read {folder}/chart.pdf", pdf),
        Turn(f"read {folder}/notes.txt", "The tide turns at six."),
        *berths(1, 5),
        Turn("tell the long story", STORY, is_struck=True),
        *(Turn(f"call {tool}", says) for tool, says in odd.items()),
        Turn("search tides", "High water is at 14:20."),
        Turn(f"write {folder}/log.txt = The Albatros is in", "It says: "),
        Turn(f"look {folder}/quay.png", UNREAD),
        Turn("recall", RECALLED),
    ]


def noon(folder: Path) -> list[Turn]:
    """10 turns of a resumed session."""
    return [
        Turn("recall", RECALLED),
        *berths(6, 10),
        Turn(f"read {folder}/log.txt", "The Albatros is in"),
        Turn("search tides of tomorrow", "High water is at 14:20."),
        Turn("call photo", UNREAD),
        Turn("recall", RECALLED),
    ]


def afternoon(folder: Path) -> list[Turn]:
    """10 turns after a compaction."""
    return [
        Turn("recall", RECALLED),
        Turn(f"look {folder}/quay.png", UNREAD),
        *berths(11, 15),
        Turn(f"write {folder}/evening.txt = All is calm", "It says: "),
        Turn(f"read {folder}/evening.txt", "All is calm"),
        Turn("recall", RECALLED),
    ]


def berths(first: int, last: int) -> list[Turn]:
    """Calls of tools of an MCP server."""
    names = [f"berth_{number:02}" for number in range(first, last + 1)]
    return [Turn(f"call {name} for Albatros", name) for name in names]
