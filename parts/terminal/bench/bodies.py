"""The bodies of requests: words for the chat API, or token ids for completions."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from parts.terminal.bench.exchange import Connector, Exchange

# Each is one token to most vocabularies, with the space before it.
_WORDS: Final = (
    "time", "year", "people", "way", "day", "man", "thing", "life", "child", "world", "state",
    "family", "group", "country", "problem", "hand", "part", "place", "case", "week", "company",
    "system", "program", "question", "work", "number", "night", "point", "home", "water", "room",
)  # fmt: skip
_IDS: Final = range(1000, 190_000)  # plain words of gpt-oss's vocabulary
_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array",
            "minItems": 200,
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
                "required": ["name", "count"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["items"],
    "additionalProperties": False,
}


class Bodies:
    """Makes requests for one server, and sends them."""

    def __init__(self, connector: Connector) -> None:
        self._connector, self._server = connector, connector.server
        self.is_in_tokens = self._server.is_in_tokens
        self._random = random.Random()
        self._path = "/v1/completions" if self.is_in_tokens else "/v1/chat/completions"

    def start(self, body: bytes) -> Exchange:
        """Begin a request."""
        return self._connector.start(self._path, body)

    def text(self, num_tokens: int) -> str:
        """Words at random, or token ids as JSON has them between its brackets."""
        words = _IDS if self.is_in_tokens else _WORDS
        return self._between.join(map(str, self._random.choices(words, k=num_tokens)))

    def joined(self, *texts: str) -> str:
        return self._between.join(texts)

    @property
    def _between(self) -> str:
        return "," if self.is_in_tokens else " "

    def ask(self, text: str, num_tokens: int, **asked: Any) -> bytes:
        """Ask for this many tokens; exactly, of a server that knows `ignore_eos`."""
        body: dict[str, Any] = {
            "model": self._server.model,
            "max_tokens": num_tokens,
            "temperature": 1.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if self._server.ignores_end else {}),
            **asked,
        }
        if not body["stream"]:
            del body["stream_options"]
        if not self.is_in_tokens:
            return json.dumps({**body, "messages": [{"role": "user", "content": text}]}).encode()
        # The ids are not parsed to be written again.
        return json.dumps({**body, "prompt": [0]}).replace("[0]", f"[{text}]", 1).encode()

    def several(self, count: int, prompt: int, answer: int, **asked: Any) -> list[bytes]:
        """That many requests of these lengths, each with a text of its own."""
        return [self.ask(self.text(prompt), answer, **asked) for _ in range(count)]

    def guided(self, text: str, num_tokens: int) -> bytes:
        """Ask for a document that its schema does not end before this length."""
        named = {"name": "list", "strict": True, "schema": _SCHEMA}
        form = {"type": "json_schema", "json_schema": named}
        body = json.loads(self.ask(text, num_tokens, response_format=form))
        body.pop("ignore_eos", None)  # a document ends where its schema lets it
        return json.dumps(body).encode()
