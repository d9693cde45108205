"""The routes that generate, with the least that each needs in a request."""

from __future__ import annotations

from typing import Any, Final

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
MODEL: Final = {"model": "gpt-oss-20b"}
HI: Final = [{"role": "user", "content": "Hi"}]
BODIES: Final[dict[str, dict[str, Any]]] = {
    CHAT: {"messages": HI},
    TEXT: {"prompt": "Hi"},
    RESPONSES: {"input": "Hi"},
    MESSAGES: {"messages": HI, "max_tokens": 9},
}
