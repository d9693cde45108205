"""A client's structural tag: for the text of the final message, so without control tokens."""

from __future__ import annotations

from typing import Any, Final

from service.errors import RequestError
from service.guide_schema import enforceable

_TOKEN_TYPES: Final = frozenset(
    ("token", "exclude_token", "any_tokens", "token_triggered_tags", "token_dispatch")
)
_PARTS: Final = ("content", "elements", "tags", "rules")


def checked_format(format: Any, field: str) -> dict[str, Any]:
    """The format with its schemas made enforceable; raises RequestError naming the place."""
    if not isinstance(format, dict) or not isinstance(format.get("type"), str):
        message = f"{field} must be an object with a type."
        raise RequestError(message, param=field, code="invalid_grammar")
    if format["type"] in _TOKEN_TYPES or any(
        isinstance(format.get(key), dict) for key in ("begin", "end")
    ):
        raise RequestError(
            f"{field} names tokens; a format may only speak of text.",
            param=field,
            code="invalid_grammar",
        )
    checked = dict(format)
    if "json_schema" in format:
        checked["json_schema"] = enforceable(format["json_schema"], f"{field}.json_schema")
    for key in _PARTS:
        if key in format:
            checked[key] = _checked_part(format[key], f"{field}.{key}")
    return checked


def _checked_part(part: Any, field: str) -> Any:
    """Formats, lists of them, or the (pattern, format) pairs of a dispatch."""
    if isinstance(part, list):
        return [_checked_part(item, f"{field}[{i}]") for i, item in enumerate(part)]
    return part if isinstance(part, str) else checked_format(part, field)
