"""Tools that Anthropic's servers run: web search, which a connected browser serves here, and what
they did in a history that began elsewhere."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import ConfigDict

from service.api.common.foreign import shown
from service.api.common.schema import OfferedModel, Replayed
from service.conversation import ToolCall
from service.roster import found_text

Json = dict[str, Any]

WEB_SEARCH: Final = "web_search"
WEB_FETCH: Final = "web_fetch"
BROWSER: Final = "browser"  # the built-in tool that serves them
_OFFERED: Final = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_")
_SILENT: Final = ("container_upload", "fallback", "mcp_tool_listing")
_OWN_ID: Final = "srvtoolu_browser_"
_MARK: Final = "result:"
_LINK: Final = re.compile(r"【\d+†([^†】\n]{1,300})†([^†】\s]{1,300})】")
_URL: Final = re.compile(r"https?://[^\s<>\"'】)\]]{1,2000}")
_MAX_RESULTS: Final = 20
_MAX_QUOTED: Final = 150
_UNAVAILABLE: Final = "unavailable"


class ServerTool(OfferedModel):
    """A tool of Anthropic's own servers: `web_search_…` is offered if a browser is connected."""

    model_config = ConfigDict(extra="allow")

    type: str
    name: str
    max_uses: int | None = None


class ServerToolUseBlock(Replayed):
    """A call that a server ran."""

    model_config = ConfigDict(extra="ignore")

    type: str
    id: str
    name: str
    input: dict[str, Any]


class ServerResultBlock(Replayed):
    """What a server's tool answered; the model reads its text."""

    model_config = ConfigDict(extra="ignore")

    type: str
    tool_use_id: str
    content: Any = None
    is_error: bool | None = None


class SilentBlock(Replayed):
    """What says nothing to the model."""

    model_config = ConfigDict(extra="ignore")

    type: str


def is_server_tool(kind: object) -> bool:
    return isinstance(kind, str) and kind.startswith(_OFFERED)


def block_tag(kind: str) -> str | None:
    """Which of the blocks above is of this type."""
    if kind in ("server_tool_use", "mcp_tool_use"):
        return "server_tool_use"
    if kind.endswith("_tool_result"):
        return "server_result"
    return "silent" if kind in _SILENT else None


def searches(tools: Iterable[object]) -> list[ServerTool]:
    """The web searches among these tools."""
    return [
        tool
        for tool in tools
        if isinstance(tool, ServerTool) and tool.type.startswith("web_search_")
    ]


def finds_tools(tools: Iterable[object]) -> bool:
    """Whether Anthropic's search for tools is among them: nothing is searched here."""
    return any(isinstance(t, ServerTool) and t.type.startswith("tool_search_tool_") for t in tools)


# What the answer has


def use_id(new_id: str) -> str:
    """The id of a call that this server runs, by which it is known again."""
    return _OWN_ID + new_id


def name_of(recipient: str) -> str:
    """What a call of the browser is to the client."""
    return WEB_SEARCH if recipient == "browser.search" else WEB_FETCH


def result_block(recipient: str, id: str, written: str, text: str, *, has_failed: bool) -> Json:
    """The result of a call, whose text the model has read."""
    name = name_of(recipient)
    content: Any
    if has_failed:
        content = {"type": f"{name}_tool_result_error", "error_code": _UNAVAILABLE}
    elif name == WEB_SEARCH:
        content = _results(arguments_of(written), text)
    else:
        source = {"type": "text", "media_type": "text/plain", "data": text}
        document = {"type": "document", "source": source, "title": None, "citations": None}
        place = arguments_of(written).get("id")
        url = place if isinstance(place, str) else ""
        page = {"type": "web_fetch_result", "url": url, "content": document, "retrieved_at": None}
        content = page
    return {"type": f"{name}_tool_result", "tool_use_id": id, "content": content}


def citation(url: str, title: str, quoted: str) -> Json:
    """A page that a text cites; Anthropic quotes up to 150 characters."""
    return {
        "type": "web_search_result_location",
        "url": url,
        "title": title,
        "encrypted_index": "",
        "cited_text": quoted[:_MAX_QUOTED],
    }


def arguments_of(written: str) -> Json:
    """The arguments of a call; empty where they are no object."""
    try:
        found = json.loads(written or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _results(arguments: Json, text: str) -> list[Json]:
    """The links of the text; the first holds the text, which a history brings back."""
    links = {f"https://{host}/": title for title, host in _LINK.findall(text)}
    links = links or {url: urlsplit(url).netloc or url for url in _URL.findall(text)}
    links = links or {"": str(arguments.get("query") or WEB_SEARCH)}
    return [
        {
            "type": "web_search_result",
            "title": title,
            "url": url,
            "encrypted_content": "" if index else _sealed(text),
            "page_age": None,
        }
        for index, (url, title) in enumerate([*links.items()][:_MAX_RESULTS])
    ]


def _sealed(text: str) -> str:
    return _MARK + base64.b64encode(text.encode()).decode()


def _unsealed(content: object) -> str | None:
    """The text in encrypted content of this server."""
    if not isinstance(content, str) or not content.startswith(_MARK):
        return None
    try:
        return base64.b64decode(content[len(_MARK) :], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


# What a history has


def call_of(block: ServerToolUseBlock) -> ToolCall:
    """The call as the model wrote it, or would have written it."""
    name = re.sub(r"[^\w-]+", "_", block.name)[:64] or "unknown"
    if block.id.startswith(_OWN_ID):
        is_find = "pattern" in block.input
        fetched = "browser.find" if is_find else "browser.open"
        name = "browser.search" if name == WEB_SEARCH else fetched
    written = json.dumps(block.input, ensure_ascii=False, separators=(",", ":"))
    return ToolCall(block.id, name, written)


def found_tools(block: ServerResultBlock) -> list[str]:
    """The tools that a search of another server has found."""
    content = block.content
    references = content.get("tool_references") if isinstance(content, Mapping) else None
    given = references if isinstance(references, list) else []
    return [each["tool_name"] for each in given if isinstance(_field(each, "tool_name"), str)]


def result_text(block: ServerResultBlock) -> str:
    """What the model reads of a result."""
    if names := found_tools(block):
        return found_text(names)
    text = _content_text(block.content) or f"[{block.type}: nothing that this model can read]"
    return f"Error: {text}" if block.is_error else text


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        sealed = (_unsealed(_field(each, "encrypted_content")) for each in content)
        whole = next((text for text in sealed if text is not None), None)
        return whole or "\n\n".join(filter(None, map(_content_text, content)))
    if not isinstance(content, Mapping):
        return ""
    kind = content.get("type")
    if isinstance(content.get("error_code"), str):
        return f"Error: {content['error_code']}"
    if isinstance(kind, str) and ("document" in kind or "image" in kind):
        return shown(content)[0]
    lines = [content[key] for key in ("title", "url", "text", "stdout", "stderr") if key in content]
    if isinstance(changed := content.get("lines"), list):
        lines += changed
    texts = [line.rstrip("\n") for line in lines if isinstance(line, str)]
    if content.get("return_code"):
        texts.append(f"[exit code {content['return_code']}]")
    inner = content.get("content")
    texts.append(_content_text(inner) if inner else "")
    return "\n".join(filter(None, texts))


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None
