"""The output items of built-in tools that this server runs.

Beside OpenAI's fields, a web search has `name`, `arguments` and `output`, and code its
`outputs`: sent back, they show the model again what it did and saw.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from service.api.responses.output import Piece

Json = dict[str, Any]
Event = tuple[str, Json]

_CODE = "response.code_interpreter_call"
_WEB = "response.web_search_call"


class HostedItem:
    """One call: written whole, then run."""

    def __init__(self, key: str, index: int, call: Piece) -> None:
        self.index = index
        self.is_code = call.name == "python"
        self.id = f"{'ci' if self.is_code else 'ws'}_{key}{index:04x}"
        self._key = key
        self._name = call.name
        self._written = call.text
        self._result: Piece | None = None

    def add(self, result: Piece) -> None:
        """Take what the call gave."""
        self._result = result

    @property
    def has_ended(self) -> bool:
        return self._result is not None

    def opened(self) -> Json:
        """The item before it runs."""
        return self._body("in_progress")

    def closed(self, status: Literal["in_progress", "completed", "incomplete"]) -> Json:
        """The item as far as it came; one with a result has its own status."""
        if self._result is not None:
            return self._body(self._result.name)
        return self._body("incomplete" if status == "completed" else status)

    def started(self) -> list[Event]:
        """The events behind `response.output_item.added`."""
        if not self.is_code:
            return [(f"{_WEB}.in_progress", {}), (f"{_WEB}.searching", {})]
        code = self._written
        deltas = [(f"{_CODE}_code.delta", {"delta": code})] if code else []
        done = (f"{_CODE}_code.done", {"code": code})
        return [(f"{_CODE}.in_progress", {}), *deltas, done, (f"{_CODE}.interpreting", {})]

    def ended(self) -> list[Event]:
        """The events before `response.output_item.done`."""
        is_completed = self._result is not None and self._result.name == "completed"
        return [(f"{_CODE if self.is_code else _WEB}.completed", {})] if is_completed else []

    def _body(self, status: str) -> Json:
        text = None if self._result is None else self._result.text
        if self.is_code:
            return {
                "id": self.id,
                "type": "code_interpreter_call",
                "status": status,
                "code": self._written,
                "container_id": f"cntr_{self._key}",
                "outputs": None if text is None else [{"type": "logs", "logs": text}],
            }
        return {
            "id": self.id,
            "type": "web_search_call",
            "status": status,
            "action": _action(self._name, self._written),
            "name": self._name,
            "arguments": self._written,
            "output": text,
        }


def _action(name: str, written: str) -> Json:
    """What the model did, in OpenAI's words."""
    try:
        arguments = json.loads(written)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {}
    if name == "browser.open":
        id = arguments.get("id")
        return {"type": "open_page", "url": id if isinstance(id, str) else None}
    if name == "browser.find":
        return {"type": "find_in_page", "pattern": str(arguments.get("pattern", "")), "url": ""}
    query = str(arguments.get("query", ""))
    return {"type": "search", "query": query, "queries": [query]}
