"""Writing model output as text with control tokens, and reading back what was parsed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from service.conversation import Delta, DeltaKind
from service.harmony.parse import Parser
from service.harmony.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    MESSAGE,
    RETURN,
    START,
    encode_text,
)

_IDS = {
    "<|start|>": START,
    "<|end|>": END,
    "<|message|>": MESSAGE,
    "<|channel|>": CHANNEL,
    "<|constrain|>": CONSTRAIN,
    "<|return|>": RETURN,
    "<|call|>": CALL,
}
_MARKUP = re.compile("(" + "|".join(map(re.escape, _IDS)) + ")")


@dataclass
class Answer:
    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    num_resyncs: int = 0
    num_reasoning_tokens: int = 0

    def take(self, delta: Delta) -> None:
        if delta.kind is DeltaKind.REASONING:
            self.reasoning += delta.text
        elif delta.kind is DeltaKind.CONTENT:
            self.content += delta.text
        elif delta.kind is DeltaKind.TOOL_CALL:
            assert delta.call_index == len(self.calls)
            self.calls.append((delta.name, ""))
        else:
            name, arguments = self.calls[delta.call_index]
            self.calls[delta.call_index] = (name, arguments + delta.text)


@pytest.fixture
def encode() -> Callable[[str], list[int]]:
    """Encode text in which `<|…|>` stands for the control token."""

    def encode(text: str) -> list[int]:
        pieces = (piece for piece in _MARKUP.split(text) if piece)
        return [i for p in pieces for i in ([_IDS[p]] if p in _IDS else encode_text(p))]

    return encode


@pytest.fixture(scope="session")
def deltas() -> Callable[..., tuple[Parser, list[Delta]]]:
    """Parse ids so many at a time (None: all at once)."""

    def deltas(
        token_ids: Sequence[int], step: int | None = None, tools: Iterable[str] = ("f", "g")
    ) -> tuple[Parser, list[Delta]]:
        parser, found = Parser(frozenset(tools)), []
        for start in range(0, len(token_ids), step or max(1, len(token_ids))):
            found += parser.feed(token_ids[start : start + (step or len(token_ids))])
        return parser, found + parser.finish()

    return deltas


@pytest.fixture(scope="session")
def answer(deltas: Callable[..., tuple[Parser, list[Delta]]]) -> Callable[..., Answer]:
    """Parse ids and put the deltas together as a client would."""

    def answer(
        token_ids: Sequence[int], step: int | None = None, tools: Iterable[str] = ("f", "g")
    ) -> Answer:
        parser, found = deltas(token_ids, step, tools)
        whole = Answer()
        for delta in found:
            whole.take(delta)
        whole.num_resyncs = parser.num_resyncs
        whole.num_reasoning_tokens = parser.num_reasoning_tokens
        return whole

    return answer
