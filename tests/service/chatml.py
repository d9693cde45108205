"""ChatML as a second chat format: a token for each byte, and one for each mark."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import service.conversation as conv
from engines.grammar.tree import Concatenation, Grammar, Literal, Text, Token, either, optional
from service.conversation import Delta, DeltaKind, Message
from service.text_decoder import TextDecoder

MARKS: Final = ("<|im_end|>", "<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
END, START, THINK, THOUGHT, CALL, CALLED = range(256, 256 + len(MARKS))
_KINDS: Final = {THINK: DeltaKind.REASONING, CALL: DeltaKind.ARGUMENTS}
_MARK = re.compile(f"({'|'.join(map(re.escape, MARKS))})")


class Parser:
    """Text is what the last mark says; the first line of a call is its name."""

    num_reasoning_tokens = num_resyncs = 0

    @property
    def is_reasoning(self) -> bool | None:
        return None if self._mark == START else self._mark == THINK

    def __init__(
        self,
        tool_names: frozenset[str],
        builtins: conv.Builtins = conv.NO_BUILTINS,
        custom_names: frozenset[str] = frozenset(),
        *,
        is_endless: bool = False,
    ) -> None:
        self._custom_names, self._decoder = custom_names, TextDecoder(lambda id: bytes([id]))
        self._mark, self._name, self._call, self._position = START, "", -1, -1

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        return [delta for token_id in token_ids for delta in self._feed(token_id)]

    def _feed(self, token_id: int) -> list[Delta]:
        self._position += 1
        if token_id < 256:
            return self._add(self._decoder.push(token_id, self._position))
        deltas, self._mark, self._name = self.finish(), token_id, ""
        return deltas

    def _add(self, piece: conv.TextPiece | None) -> list[Delta]:
        if piece is None or self._mark == END:
            return []
        text, positions = piece
        if self._mark == CALL and not self._name.endswith("\n"):
            name, self._name = self._name, self._name + text
            if text != "\n":
                return []
            self._call += 1
            kind = DeltaKind.CUSTOM_CALL if name in self._custom_names else DeltaKind.TOOL_CALL
            return [Delta(kind, "", self._call, name)]
        self.num_reasoning_tokens += len(positions) if self._mark == THINK else 0
        kind = _KINDS.get(self._mark, DeltaKind.CONTENT)
        return [Delta(kind, text, max(self._call, 0), "", positions)]

    def finish(self) -> list[Delta]:
        return self._add(self._decoder.flush())

    def resume(self) -> None: ...


class ChatML:
    """Implements service.chat_format.ChatFormat."""

    builtins: frozenset[str] = frozenset()
    stop_token_ids, longest_token_chars, parser = (END,), 1, Parser

    def prompt_of(self, conversation: conv.Conversation, max_steps: int = 0) -> list[int]:
        called = {call.id for message in conversation.messages for call in message.tool_calls}
        for index, message in enumerate(conversation.messages):
            if message.role == "tool" and message.tool_call_id not in called:
                raise conv.UnknownToolCall(message.tool_call_id, index)
        tools = [{"name": tool.name, "parameters": tool.parameters} for tool in conversation.tools]
        head = [Message("system", f"# Tools\n{json.dumps(tools)}")] if tools else []
        ids = [id for m in (*head, *conversation.messages) for id in self._turn(m)]
        return ids + ([START, *b"assistant\n"] if conversation.opens_answer else [])

    def _turn(self, message: Message) -> list[int]:
        thoughts = [THINK, *message.reasoning.encode(), THOUGHT] if message.reasoning else []
        ids = [START, *f"{message.role}\n".encode(), *thoughts, *message.content.encode()]
        texts = (f"{call.name}\n{call.arguments}".encode() for call in message.tool_calls)
        return [*ids, *(id for text in texts for id in (CALL, *text, CALLED)), END, *b"\n"]

    def _no_builtins(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("it has no built-in tools")

    result_of_call = builtin_call_grammar = _no_builtins

    def first_reasoning(self, messages: Sequence[Message]) -> int:
        return 0

    def turns_of(self, token_ids: Sequence[int]) -> list[conv.Turn]:
        texts = self.decode_marked(token_ids).split(MARKS[1])[1:]
        return [conv.Turn(text.partition("\n")[0], "text", text) for text in texts]

    def answer_grammar(
        self, calls: Sequence[Grammar], final: Grammar | None, max_reasoning_tokens: int | None
    ) -> Grammar:
        thoughts = Concatenation((Token(THINK), Text(max_reasoning_tokens), Token(THOUGHT)))
        return Concatenation((optional(thoughts), either([*calls, *([final] if final else [])])))

    def call_grammar(self, name: str, content: Grammar, *, is_free_text: bool) -> Grammar:
        return Concatenation((Token(CALL), Literal(f"{name}\n"), content, Token(CALLED)))

    def final_grammar(self, content: Grammar | None) -> Grammar:
        return content or Text()

    def end_of_reasoning(self, grammar: Grammar | None) -> tuple[list[int], Grammar | None]:
        return [THOUGHT], grammar.parts[1] if isinstance(grammar, Concatenation) else None

    def write_vocabulary(self, folder: Path) -> Path:
        lines = (b"%s %d\n" % (b64encode(bytes([id])), id) for id in range(256))
        (folder / "chatml.tiktoken").write_bytes(b"".join(lines))
        return folder / "chatml.tiktoken"

    def encode_text(self, text: str) -> list[int]:
        return [*text.encode()]

    def encode_marked(self, text: str) -> list[int]:
        ids = ([256 + MARKS.index(t)] if t in MARKS else t.encode() for t in _MARK.split(text))
        return [id for part in ids for id in part]

    def decode_marked(self, token_ids: Iterable[int]) -> str:
        spelt = (self.decode_bytes(id) or self.name_of(id).encode() for id in token_ids)
        return b"".join(spelt).decode("utf-8", "replace")

    def decode_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if self.is_ordinary(token_id) else b""

    def is_ordinary(self, token_id: int) -> bool:
        return 0 <= token_id < 256

    def name_of(self, token_id: int) -> str:
        return dict(enumerate(MARKS, 256)).get(token_id, "")


FORMAT: Final = ChatML()
