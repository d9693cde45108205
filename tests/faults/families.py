"""A request to generate of each family of the API that is there."""

from __future__ import annotations

from typing import Any, Final

from engines.parts import folders

CHAT: Final = "/v1/chat/completions"
_HI: Final = [{"role": "user", "content": "Hi"}]
_OF_PARTS: Final[dict[str, dict[str, Any]]] = {
    "completions": {"prompt": "Hi"},
    "responses": {"input": "Hi"},
    "messages": {"messages": _HI, "max_tokens": 99},
}
REQUESTS: Final[dict[str, dict[str, Any]]] = {
    CHAT: {"messages": _HI},
    **{f"/v1/{part}": body for part, body in _OF_PARTS.items() if part in folders()},
}
