"""A response's output items while they are written.

The pieces that made an answer are its whole record: the same pieces always make the same
items under the same ids, so that events can be sent again from any point.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from parts.responses.answer.pieces import Piece
from parts.responses.answer.typed import Event, TypedItem
from parts.responses.tools.typed import MCP, NAMESPACE, TYPED
from service.answer.citations import Sources
from service.conversation import CALL_KINDS, DeltaKind

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Json = dict[str, Any]
Seal = Callable[[str], str]

_CODE = "response.code_interpreter_call"
_WEB = "response.web_search_call"
_MCP = "response.mcp_call"

_GOES_ON = (DeltaKind.ARGUMENTS, DeltaKind.HOSTED_RESULT)  # pieces of the item before
_PREFIXES = {
    DeltaKind.REASONING: "rs",
    DeltaKind.CONTENT: "msg",
    DeltaKind.TOOL_CALL: "fc",
    DeltaKind.CUSTOM_CALL: "ctc",
}


class Item:
    """One output item: reasoning, a message or a call."""

    def __init__(self, key: str, index: int, first: Piece) -> None:
        self.kind = first.kind
        self.index = index
        self.id = f"{_PREFIXES[first.kind]}_{key}{index:04x}"
        self._call_id = f"call_{key[-20:]}{index:04x}"
        namespace, _, name = first.name.rpartition(".")
        is_inside = first.type == NAMESPACE
        self._called = {"namespace": namespace, "name": name} if is_inside else {"name": first.name}
        self._texts: list[str] = []
        self._logprobs: list[msgspec.Raw] = []
        self.seal: Seal | None = None  # of thoughts, for the client to keep
        self.sources: Sources | None = None  # what the text may cite

    @property
    def is_call(self) -> bool:
        """Whether the item is a call of a client's tool."""
        return self.kind in CALL_KINDS

    @property
    def text_field(self) -> str:
        """The name that the item and its events have for its text."""
        if self.is_call:
            return "input" if self.kind is DeltaKind.CUSTOM_CALL else "arguments"
        return "text"

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def logprobs(self) -> list[msgspec.Raw]:
        """The log-probabilities of the item's text so far."""
        return self._logprobs

    def add(self, piece: Piece) -> None:
        self._texts.append(piece.text)
        if piece.logprobs:
            self._logprobs += piece.logprobs

    def part(self, text: str, logprobs: Sequence[msgspec.Raw] = ()) -> Json:
        """The content part of a reasoning or message item, with its text so far."""
        if self.kind is DeltaKind.REASONING:
            return {"type": "reasoning_text", "text": text}
        cited = self.annotations(text)
        return {
            "type": "output_text",
            "text": text,
            "annotations": cited,
            "logprobs": list(logprobs),
        }

    def annotations(self, text: str) -> list[Json]:
        """What a text of the answer cites."""
        if self.kind is not DeltaKind.CONTENT or self.sources is None:
            return []
        return [{"type": "url_citation", **each.fields} for each in self.sources.cited(text)]

    def opened(self) -> Json:
        """The item as it is announced, without text."""
        return self._body("in_progress", "", [])

    def closed(self, status: ItemStatus) -> Json:
        parts = [self.part(self.text, self._logprobs)] if self._texts else []
        return self._body(status, self.text, parts)

    def _body(self, status: ItemStatus, text: str, parts: list[Json]) -> Json:
        if self.is_call:
            is_custom = self.kind is DeltaKind.CUSTOM_CALL
            return {
                "id": self.id,
                "type": "custom_tool_call" if is_custom else "function_call",
                "status": status,
                "call_id": self._call_id,
                **self._called,
                self.text_field: text,
            }
        if self.kind is DeltaKind.CONTENT:
            head = {"id": self.id, "type": "message", "status": status, "role": "assistant"}
            return {**head, "content": parts}
        head = {"id": self.id, "type": "reasoning", "status": status}
        item = {**head, "summary": [], "content": parts}
        if self.seal is not None and text:
            item["encrypted_content"] = self.seal(text)
        return item


class CompactedItem:
    """A compacted conversation; it comes whole."""

    def __init__(self, key: str, index: int, piece: Piece) -> None:
        self.index = index
        self.id = f"cmp_{key}{index:04x}"
        self._sealed = piece.text

    def opened(self) -> Json:
        return {"id": self.id, "type": "compaction", "encrypted_content": ""}

    def closed(self, _: ItemStatus) -> Json:
        return {"id": self.id, "type": "compaction", "encrypted_content": self._sealed}

    def add(self, _: Piece) -> None:
        raise AssertionError("a compaction is one piece")


class HostedItem:
    """One call of a built-in tool that this server runs: written whole, then run.

    Beside OpenAI's fields, a web search has `name`, `arguments` and `output`, and code its
    `outputs`: sent back, they show the model again what it did and saw. Asked for as an MCP
    server, both are calls of MCP.
    """

    def __init__(self, key: str, index: int, call: Piece) -> None:
        self.index = index
        self._is_mcp = call.type == MCP
        self._is_code = call.name == "python" and not self._is_mcp
        prefix = "mcp" if self._is_mcp else "ci" if self._is_code else "ws"
        self.id = f"{prefix}_{key}{index:04x}"
        self._key = key
        self.name = call.name
        self._written = call.text
        self._result: Piece | None = None

    def add(self, result: Piece) -> None:
        self._result = result

    @property
    def has_ended(self) -> bool:
        return self._result is not None

    def opened(self) -> Json:
        """The item as it is announced, before the call runs."""
        return self._body("in_progress")

    def closed(self, status: Literal["in_progress", "completed", "incomplete"]) -> Json:
        """The item as far as it came; one with a result has its own status."""
        if self._result is not None:
            return self._body(self._result.name)
        return self._body("incomplete" if status == "completed" else status)

    def started(self) -> list[Event]:
        """The events that follow `response.output_item.added`."""
        if self._is_mcp:
            delta = {"delta": self._mcp_arguments()}
            done = {"arguments": self._mcp_arguments()}
            return [
                (f"{_MCP}.in_progress", {}),
                (f"{_MCP}_arguments.delta", delta),
                (f"{_MCP}_arguments.done", done),
            ]
        if not self._is_code:
            return [(f"{_WEB}.in_progress", {}), (f"{_WEB}.searching", {})]
        code = self._written
        deltas = [(f"{_CODE}_code.delta", {"delta": code})] if code else []
        end = (f"{_CODE}_code.done", {"code": code})
        return [(f"{_CODE}.in_progress", {}), *deltas, end, (f"{_CODE}.interpreting", {})]

    def ended(self) -> list[Event]:
        """The events that precede `response.output_item.done`."""
        status = "incomplete" if self._result is None else self._result.name
        kind = _MCP if self._is_mcp else _CODE if self._is_code else _WEB
        is_told = status == "completed" or (status == "failed" and self._is_mcp)
        return [(f"{kind}.{status}", {})] if is_told else []

    def _mcp_arguments(self) -> str:
        """As MCP has them: code is an argument."""
        return json.dumps({"code": self._written}) if self.name == "python" else self._written

    def _body(self, status: str) -> Json:
        text = None if self._result is None else self._result.text
        if self._is_mcp:
            label, _, name = self.name.partition(".")
            has_failed = status == "failed"
            return {
                "id": self.id,
                "type": "mcp_call",
                "status": status,
                "server_label": label,
                "name": name or label,
                "arguments": self._mcp_arguments(),
                "output": None if has_failed else text,
                "error": text if has_failed else None,
                "approval_request_id": None,
            }
        if self._is_code:
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
            "action": _action(self.name, self._written),
            "name": self.name,
            "arguments": self._written,
            "output": text,
        }


class Output:
    """Joins pieces to items; the last item is open until another begins."""

    def __init__(self, head: Json, seal: Seal | None = None) -> None:
        self._seal = seal
        self._sources = Sources()
        self.items: list[Item | TypedItem | HostedItem | CompactedItem] = []
        self._key = item_key(head["id"])

    def begins_item(self, piece: Piece) -> bool:
        if piece.kind in _GOES_ON:
            return False
        last = self.items[-1] if self.items else None
        is_open = isinstance(last, Item) and last.kind is piece.kind
        return piece.kind in CALL_KINDS or not is_open

    def open(self, first: Piece) -> Item | TypedItem:
        """Begin an item, without the text of its first piece."""
        kind = TypedItem if first.type in TYPED else Item
        item = kind(self._key, len(self.items), first)
        if isinstance(item, Item):
            item.seal = self._seal
            item.sources = self._sources
        self.items.append(item)
        return item

    def host(self, call: Piece) -> HostedItem:
        """Begin the item of a call that this server runs."""
        item = HostedItem(self._key, len(self.items), call)
        self.items.append(item)
        return item

    def compact(self, piece: Piece) -> CompactedItem:
        item = CompactedItem(self._key, len(self.items), piece)
        self.items.append(item)
        return item

    def add(self, piece: Piece) -> None:
        if piece.kind is DeltaKind.HOSTED_CALL:
            self.host(piece)
            return
        if piece.kind is DeltaKind.COMPACTION:
            self.compact(piece)
            return
        if self.begins_item(piece):
            self.open(piece)
        last = self.items[-1]
        if piece.text or piece.kind is DeltaKind.HOSTED_RESULT:
            last.add(piece)
        if isinstance(last, HostedItem):
            self._sources.add(last.name, piece.text)

    def extend(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self.add(piece)

    def closed(self, last: ItemStatus) -> list[Json]:
        """All items; only the last may have been cut."""
        if not self.items:
            return []
        earlier = [item.closed("completed") for item in self.items[:-1]]
        return [*earlier, self.items[-1].closed(last)]


def item_key(response_id: str) -> str:
    """The beginning of the ids of a response's items."""
    return response_id.partition("_")[2]


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
