"""The output item of a call of a tool that the API knows by its type."""

from __future__ import annotations

from typing import Any, Literal

from parts.responses.answer.pieces import Piece
from parts.responses.tools.typed import TYPED

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Json = dict[str, Any]
Event = tuple[str, Json]  # its name, and its fields beside the item's place

_COMMAND = "response.shell_call_command"


class TypedItem:
    """One call: its arguments are read when they are whole, and announced then."""

    def __init__(self, key: str, index: int, first: Piece) -> None:
        self.index = index
        self._tool = TYPED[first.type]
        self.id = f"{self._tool.prefix}_{key}{index:04x}"
        self._call_id = f"call_{key[-20:]}{index:04x}"
        self._texts: list[str] = []

    def add(self, piece: Piece) -> None:
        self._texts.append(piece.text)

    def opened(self) -> Json:
        return self._body("in_progress")

    def closed(self, status: ItemStatus) -> Json:
        # The published type of apply_patch_call has no status for one that was cut off.
        is_patch = self._tool.type == "apply_patch"
        return self._body("in_progress" if is_patch and status == "incomplete" else status)

    def events(self) -> list[Event]:
        """The events between its announcement and its end."""
        if self._tool.type != "shell":
            return []
        events: list[Event] = []
        for index, command in enumerate(self._fields()["action"]["commands"]):
            place = {"command_index": index}
            events += [
                (f"{_COMMAND}.added", {**place, "command": ""}),
                (f"{_COMMAND}.delta", {**place, "delta": command}),
                (f"{_COMMAND}.done", {**place, "command": command}),
            ]
        return events

    def _fields(self) -> Json:
        return self._tool.fields_of("".join(self._texts))

    def _body(self, status: ItemStatus) -> Json:
        return {
            "id": self.id,
            "type": self._tool.call_type,
            "status": status,
            "call_id": self._call_id,
            **self._fields(),
        }
