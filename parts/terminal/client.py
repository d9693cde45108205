"""A client of an OpenAI-compatible server, as small as a terminal needs it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import httpx2
from httpx2 import EventSource

from service.cli.server_flags import refusal, unreachable

CONNECT_S, SILENCE_S = 5.0, 300.0  # a model may think for long before its first token
_CUT = "The answer is incomplete: the server closed the connection."


class ChatError(Exception):
    """No answer; the message says why in the server's words, or what to do."""


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """A piece of an answer as it comes."""

    kind: Literal["reasoning", "content"]
    text: str


@dataclass(slots=True)
class Answer:
    """What a stream has brought so far."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None

    def as_message(self) -> dict[str, Any]:
        """Return the message that keeps the answer's place in the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        return {**message, "tool_calls": self.tool_calls} if self.tool_calls else message

    def take(self, chunk: Mapping[str, Any]) -> Iterator[AnswerPiece]:
        """Add a chunk, and yield its visible parts; raises ChatError for an error."""
        if error := chunk.get("error"):
            raise ChatError(str(error.get("message", error)))
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            delta = choice.get("delta") or {}
            for call in delta.get("tool_calls") or ():
                self._take_call(call)
            # vLLM and we say `reasoning`, older servers `reasoning_content`.
            if text := delta.get("reasoning") or delta.get("reasoning_content"):
                self.reasoning += text
                yield AnswerPiece("reasoning", text)
            if text := delta.get("content"):
                self.content += text
                yield AnswerPiece("content", text)

    def _take_call(self, part: Mapping[str, Any]) -> None:
        while len(self.tool_calls) <= part["index"]:
            function = {"name": "", "arguments": ""}
            self.tool_calls.append({"id": "", "type": "function", "function": function})
        call, function = self.tool_calls[part["index"]], part.get("function") or {}
        call["id"] = part.get("id") or call["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


class Client:
    """One server; `url` is its address, with or without the closing /v1."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        self._http = httpx2.Client(base_url=self.url, headers=headers, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def first_model(self) -> str:
        """Ask for the id of the first model served; raises ChatError."""
        try:
            return str(self._models()[0]["id"])
        except (LookupError, TypeError):
            raise ChatError(f"{self.url}/v1/models lists no model") from None

    def served(self, model: str | None) -> tuple[str, int]:
        """Ask for a model's id and context in tokens, the first one's for None; raises
        ChatError."""
        name = model or self.first_model()
        for card in self._models():
            if card.get("id") == name and isinstance(card.get("max_model_len"), int):
                return name, card["max_model_len"]
        raise ChatError(
            f"{self.url}/v1/models does not report the context length (max_model_len) of {name}"
        )

    def connected_tools(self) -> tuple[str, ...]:
        """Names of the server's own tools; none where another server is asked, or the key may not
        read it."""
        try:
            answer = self._http.get("/v1/metadata", params={"license_text": "false"})
            return tuple(str(name) for name in answer.json()["tools"])
        except (httpx2.HTTPError, ValueError, LookupError, TypeError):
            return ()

    def _models(self) -> list[Any]:
        try:
            answer = self._http.get("/v1/models")
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None
        check(answer)
        try:
            return list(answer.json()["data"])
        except (ValueError, LookupError, TypeError):
            return []

    def ask(self, body: Mapping[str, Any], answer: Answer) -> Iterator[AnswerPiece]:
        """Stream one answer into `answer`; raises ChatError. Closing the iterator cancels it."""
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=asked) as response:
                if response.is_error:
                    response.read()
                    check(response)
                for event in EventSource(response, max_event_size=None):
                    if event.data == "[DONE]":
                        return
                    yield from answer.take(json.loads(event.data))
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None
        raise ChatError(_CUT)

    def _unreachable(self, error: httpx2.HTTPError) -> ChatError:
        is_cut = isinstance(error, httpx2.RemoteProtocolError | httpx2.ReadError)
        return ChatError(_CUT if is_cut else unreachable(self.url, error))


def check(answer: httpx2.Response) -> None:
    """Raise ChatError with the server's message for an error answer."""
    if not answer.is_success:
        raise ChatError(refusal(answer))
