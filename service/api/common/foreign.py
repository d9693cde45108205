"""Content parts of other kinds than text: their text, or one line in their place.

What a tool gave stays in the history: its client cannot take a picture back, so a refusal would end
the conversation. The model is told in a line what it cannot read. Agents also put it in a user's
message behind the result. What a user sent is refused: a loss would not be noticed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from pydantic import AfterValidator, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from service.api.common.schema import Replayed
from service.conversation import MESSAGE_BREAK
from service.request import RequestContext

FILES: Final = ("document", "file", "input_file", "search_result")  # may be text

_MAX_NAME: Final = 200  # characters of a name or an address
_NESTED: Final = ("source", "file", "image_url", "input_audio", "video_url", "resource")
_NAMES: Final = ("title", "filename", "name")
_MEDIA: Final = ("media_type", "mimeType", "mime_type")
_DATA: Final = ("data", "file_data", "blob")
_URLS: Final = ("image_url", "url", "file_url")  # may be data: URLs
_ADDRESSES: Final = ("url", "image_url", "file_url", "uri", "file_id")
_KINDS: Final = ("image", "audio", "video", "document", "file")  # words of types
_NO_ANSWER: Final = ("user", "system", "developer")  # roles
_TEXT_MEDIA: Final = (
    *("application/json", "application/xml", "application/yaml", "application/x-yaml"),
    *("application/toml", "application/javascript", "application/x-sh", "application/sql"),
)
_TEXT_ENDINGS: Final = (
    *(".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".html", ".yaml", ".yml"),
    *(".toml", ".ini", ".log", ".py", ".js", ".ts", ".sh", ".sql", ".css", ".diff", ".patch"),
)

Part = Mapping[str, Any]


class FromTool(dict[str, Any]):
    """A part of a user's message that belongs to the tool's result before it."""


def mark_results(turns: Any, is_result: Callable[[Part], bool]) -> Any:
    """Mark the parts of users' messages between a tool's result and the next answer: agents put
    there what the API has no place for in the result."""
    if not isinstance(turns, list):
        return turns
    # Few calls for each turn: there may be thousands, and most requests have no result.
    results = {at for at, turn in enumerate(turns) if turn.__class__ is dict and is_result(turn)}
    if not results:
        return turns
    marked, is_open = list(turns), False
    for at, turn in enumerate(turns):
        if not isinstance(turn, dict):
            continue
        is_open = at in results or (is_open and turn.get("role") in _NO_ANSWER)
        if is_open and turn.get("role") == "user" and isinstance(turn.get("content"), list):
            marked[at] = {**turn, "content": [*map(_marked, turn["content"])]}
    return marked


def _marked(part: Any) -> Any:
    return FromTool(part) if isinstance(part, dict) else part


class ForeignPart(Replayed):
    """A part of another kind than text, as the model reads it."""

    model_config = ConfigDict(extra="ignore")

    type: str
    text: str
    is_unread: bool = False  # `text` is the line in its place
    is_from_tool: bool = False

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            return value
        text, is_unread = shown(value)
        is_from_tool = isinstance(value, FromTool)
        return {
            "type": value["type"],
            "text": text,
            "is_unread": is_unread,
            "is_from_tool": is_from_tool,
        }

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {
            "type": "object",
            "title": cls.__name__,
            "description": "A picture, document, file or other part: the model reads its text, or "
            "a line that says what it is.",
            "properties": {"type": {"type": "string"}},
            "required": ["type"],
            "additionalProperties": True,
        }


def _refuse_unread(part: ForeignPart) -> ForeignPart:
    if not part.is_from_tool and (part.is_unread or part.type not in FILES):
        raise PydanticCustomError(
            "unsupported_part",
            "content parts of type {kind} are read here only if they are plain text: gpt-oss reads "
            "text only; send the text",
            {"kind": repr(part.type)},
        )
    return part


ReadablePart = Annotated[ForeignPart, AfterValidator(_refuse_unread)]
"""What a user may send: a document or file of plain text; and what came with a tool's result."""


def shown(part: Part) -> tuple[str, bool]:
    """A part as the model reads it, and whether the model cannot read all of it."""
    if isinstance(part.get("text"), str):
        return part["text"], False
    whole = _flat(part)
    text, is_unread = whole.get("text"), False
    if not isinstance(text, str) and part["type"] in FILES:
        text, is_unread = _content(whole.get("content"))
    if not isinstance(text, str):
        text = _decoded(_data_of(whole), whole)
    if text is None:
        return line_of(part), True
    heads = [whole.get(key) for key in ("title", "filename", "context", "source")]
    given = [head for head in heads if isinstance(head, str) and head]
    return MESSAGE_BREAK.join([*given, text]), is_unread


def line_of(part: Part) -> str:
    """The line of the prompt for a part that the model cannot read: its name, kind and size.

    The size of encoded data is computed, not decoded.
    """
    whole = _flat(part)
    data = _data_of(whole)
    names = [whole[key] for key in _NAMES if _is_text(whole, key)]
    media = data.media if data is not None else _media(whole)
    kind = next((kind for kind in _KINDS if kind in part["type"]), part["type"])
    if data is not None:
        places = [f"{_num_bytes(data):,} bytes"]
    else:
        places = [whole[key] for key in _ADDRESSES if _is_text(whole, key)]
    about = [*names[:1], media or kind, *places[:1]]
    return f"[{', '.join(map(_clipped, about))}: this model reads text only]"


def joined(parts: Iterable[tuple[str, bool]]) -> str:
    """Texts end to end; a foreign one (True) has lines of its own."""
    pieces: list[str] = []
    was_foreign = False
    for text, is_foreign in parts:
        if not text:
            continue
        if pieces and (is_foreign or was_foreign) and not pieces[-1].endswith("\n"):
            pieces.append("\n")
        pieces.append(text)
        was_foreign = is_foreign
    return "".join(pieces)


def note_unread(context: RequestContext, contents: Iterable[object]) -> None:
    """Count the parts of these contents that the model cannot read, for the metric."""
    context.notes.num_unread += sum(
        isinstance(part, ForeignPart) and part.is_unread
        for content in contents
        if isinstance(content, list)
        for part in content
    )


class _Data(NamedTuple):
    """What a part holds in itself."""

    value: str
    media: str  # "": not told
    coding: str  # base64, url, or text


def _flat(part: Part) -> dict[str, Any]:
    """The fields of a part and of what it holds; every API nests them in its own way."""
    whole = {key: value for key, value in part.items() if not isinstance(value, Mapping)}
    for key in _NESTED:
        if isinstance(inner := part.get(key), Mapping):
            is_source = key == "source"
            whole |= {
                "source_type" if k == "type" and is_source else k: v for k, v in inner.items()
            }
    return whole


def _is_text(whole: Part, key: str) -> bool:
    return isinstance(whole.get(key), str) and bool(whole[key])


def _media(whole: Part) -> str:
    if media := next((whole[key] for key in _MEDIA if _is_text(whole, key)), ""):
        return str(media)
    return f"audio/{whole['format']}" if _is_text(whole, "format") else ""


def _data_of(whole: Part) -> _Data | None:
    for key in (*_DATA, *_URLS):
        value = whole.get(key)
        if isinstance(value, str) and value.startswith("data:"):
            head = value[5:_MAX_NAME].partition(",")[0]
            media, *options = head.split(";")
            coding = "base64" if "base64" in options else "url"
            return _Data(value[5 + len(head) + 1 :], media, coding)
        if isinstance(value, str) and key in _DATA:
            coding = "text" if whole.get("source_type") == "text" else "base64"
            return _Data(value, _media(whole), coding)
    return None


def _num_bytes(data: _Data) -> int:
    if data.coding != "base64":
        return len(data.value)
    num_padding = len(data.value[-2:]) - len(data.value[-2:].rstrip("="))
    return max((len(data.value) - data.value.count("\n")) * 3 // 4 - num_padding, 0)


def _decoded(data: _Data | None, whole: Part) -> str | None:
    """The text of data whose media type or name says that it is text."""
    if data is None:
        return None
    media = data.media.partition(";")[0].strip().lower()
    name = str(whole.get("filename") or whole.get("title") or "").lower()
    is_untold = media in ("", "application/octet-stream") and name.endswith(_TEXT_ENDINGS)
    is_text = media.startswith("text/") or media.endswith(("+json", "+xml")) or media in _TEXT_MEDIA
    if data.coding == "text":
        return data.value
    if not (is_text or is_untold):
        return None
    try:
        if data.coding == "url":
            return unquote_to_bytes(data.value).decode()
        return base64.b64decode(data.value, validate=True).decode()
    except (binascii.Error, UnicodeError):
        return None


def _content(content: Any) -> tuple[str | None, bool]:
    """The text of a document that is made of blocks, and whether one of them cannot be read."""
    if isinstance(content, str):
        return content, False
    if not isinstance(content, list) or not content:
        return None, False
    blocks = [each for each in content if isinstance(each, dict) and _is_text(each, "type")]
    texts = [
        (each["text"], False) if _is_text(each, "text") else (line_of(each), True)
        for each in blocks
    ]
    return joined(texts), any(is_unread for _, is_unread in texts)


def _clipped(text: str) -> str:
    """A name or an address on one line, and not longer than a line."""
    line = " ".join(text[: _MAX_NAME + 1].split())
    return line if len(line) <= _MAX_NAME else f"{line[:_MAX_NAME]}…"
