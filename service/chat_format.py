"""The chat format: how conversations become token ids, and generated ids become an answer.

The rest of the service knows ChatFormat only. `CHAT_FORMAT` is the one place that names Harmony,
the format of gpt-oss; another model family brings an implementation of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from engines.grammar.tree import Grammar
from service.conversation import (
    NO_BUILTINS,
    Builtins,
    Conversation,
    Delta,
    Message,
    ReasoningEffort,
    TextPiece,
    Turn,
)
from service.harmony import format as harmony


class AnswerParser(Protocol):
    """Turns the ids of one choice into deltas, however many ids come at once."""

    num_reasoning_tokens: int
    num_resyncs: int  # departures from the format that were repaired

    def feed(self, token_ids: Sequence[int]) -> list[Delta]: ...

    def finish(self) -> list[Delta]:
        """Give what was held back when the output ends, at whatever point."""
        ...

    def resume(self) -> None:
        """Continue after a tool's result that joined the prompt."""
        ...


class TextDecoder(Protocol):
    """Turns ids into text; holds the bytes of an unfinished character until it is whole."""

    def push(self, token_id: int, position: int) -> TextPiece | None: ...

    def flush(self) -> TextPiece | None: ...


class ChatFormat(Protocol):
    """Prompts, answers, grammars and vocabulary of a model family."""

    call_token_id: int  # ends a call
    num_opening_tokens: int  # with which every prompt ends: the beginning of the answer's header
    longest_token_chars: int  # that an ordinary id spells
    efforts: Mapping[str | None, ReasoningEffort]  # of the efforts that requests may name

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The first ends a guided answer."""
        ...

    @property
    def whole_texts(self) -> Mapping[int, str | None]:
        """Each id's text if it is whole characters, else None."""
        ...

    # Prompts

    def render(self, conversation: Conversation, max_steps: int = ...) -> list[int]:
        """The prompt of a conversation, up to where the assistant's next header begins.

        Raises UnknownToolCall where a tool message answers no earlier call, ToolTooLarge for tools
        that take more than `max_steps`, and OverBudget for more tokens than in_turns allows.
        """
        ...

    def render_result(self, recipient: str, text: str, *, max_tokens: int) -> list[int]:
        """The ids behind a built-in tool's call; the text is cut to fit into `max_tokens`."""
        ...

    def thoughts_turn(self, reasoning: str) -> list[int]:
        """The ids of a chain of thought in a prompt, header and end included."""
        ...

    def last_final(self, messages: Sequence[Message]) -> int:
        """The index of the last answer, -1 for none: reasoning up to it leaves the prompt."""
        ...

    def recipients_of(self, tools: Iterable[str]) -> frozenset[str]:
        """The names by which the model calls these built-in tools."""
        ...

    def turns_of(self, token_ids: Sequence[int]) -> list[Turn]:
        """The turns of a prompt or an answer."""
        ...

    # Answers

    def parser(
        self,
        tool_names: frozenset[str],
        builtins: Builtins = NO_BUILTINS,
        custom_names: frozenset[str] = ...,
        *,
        is_endless: bool = False,
    ) -> AnswerParser:
        """A parser of one choice; `is_endless`: the answer continues after its end token."""
        ...

    def answer_grammar(
        self, calls: Sequence[Grammar], final: Grammar | None, max_reasoning_tokens: int | None
    ) -> Grammar:
        """Reasoning, then one of the calls or the final message; None: it must be a call."""
        ...

    def call_grammar(self, name: str, content: Grammar, *, is_free_text: bool) -> Grammar:
        """A call of the client's tool with this qualified name."""
        ...

    def builtin_call_grammar(self, recipient: str) -> Grammar: ...

    def final_grammar(self, content: Grammar | None) -> Grammar:
        """The final message; None: any text."""
        ...

    # Vocabulary

    def load(self) -> None:
        """Read the vocabulary now (about 0.3 s) rather than at the first request."""
        ...

    def write_vocabulary(self, folder: Path) -> Path:
        """Write the vocabulary's file unless it is there; return its path."""
        ...

    def encode_text(self, text: str) -> list[int]:
        """Encode text as ordinary ids, control tokens spelt out in it too."""
        ...

    def encode_marked(self, text: str) -> list[int]:
        """Encode text in which a control token's name means the token."""
        ...

    def decode_marked(self, token_ids: Iterable[int]) -> str:
        """The text of ids, control tokens spelt out; broken characters become U+FFFD."""
        ...

    def decode_bytes(self, token_id: int) -> bytes:
        """The bytes an id spells, which may be a part of a character; b"" if it spells none."""
        ...

    def decoder(self) -> TextDecoder: ...

    def is_ordinary(self, token_id: int) -> bool:
        """Whether the id spells text; control tokens and ids outside the vocabulary do not."""
        ...

    def name_of(self, token_id: int) -> str:
        """A control token as it is written; "" for an unknown id."""
        ...


CHAT_FORMAT: Final[ChatFormat] = harmony
