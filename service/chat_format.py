"""The chat format: how conversations become token ids, and generated ids become an answer.

The rest of the service knows ChatFormat only. The catalogue names the format of each model
(profiles/catalogue/models.py), wiring puts it on the Runtime, and each Plan carries it. Harmony,
gpt-oss's, is the core's own; another one is parts/<name>/format.py with `FORMAT: ChatFormat`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from engines.grammar.tree import Grammar
from engines.parts import facet, having
from profiles.errors import InvalidConstraint
from service.conversation import NO_BUILTINS, Builtins, Conversation, Delta, Message, Turn

HARMONY: Final = "harmony"


class AnswerParser(Protocol):
    """Turns the ids of one choice into deltas, however many ids come at once."""

    num_reasoning_tokens: int
    num_resyncs: int  # departures from the format that were repaired

    @property
    def is_reasoning(self) -> bool | None:
        """Whether a text of the chain of thought is being written; None while nothing is."""

    def feed(self, token_ids: Sequence[int]) -> list[Delta]: ...

    def finish(self) -> list[Delta]:
        """Give what was held back when the output ends, at whatever point."""

    def resume(self) -> None:
        """Continue after a tool's result that joined the prompt."""


@runtime_checkable
class ChatFormat(Hashable, Protocol):
    """Prompts, answers, grammars and vocabulary of a model family."""

    @property
    def builtins(self) -> frozenset[str]:
        """Of the built-in tools, `browser` and `python`, those that the model was trained with."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The first ends a guided answer."""

    @property
    def longest_token_chars(self) -> int:
        """Characters that an ordinary id spells at most."""

    # Prompts

    def prompt_of(self, conversation: Conversation, max_steps: int = ...) -> list[int]:
        """The prompt of a conversation, up to where the model continues.

        Raises UnknownToolCall where a tool message answers no earlier call, ToolTooLarge for tools
        that take more than `max_steps`, and OverBudget for more tokens than in_turns allows.
        """

    def result_of_call(self, name: str, text: str, *, max_tokens: int) -> list[int]:
        """What is written in the place of the last id of a call of a built-in tool: its end, its
        result, and the beginning of what the model continues. The text is cut to fit into
        `max_tokens`."""

    def first_reasoning(self, messages: Sequence[Message]) -> int:
        """The index from which on messages keep their reasoning in the prompt."""

    def turns_of(self, token_ids: Sequence[int]) -> list[Turn]: ...

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

    def answer_grammar(
        self, calls: Sequence[Grammar], final: Grammar | None, max_reasoning_tokens: int | None
    ) -> Grammar:
        """Reasoning, then one of the calls or the final message; None: it must be a call."""

    def call_grammar(self, name: str, content: Grammar, *, is_free_text: bool) -> Grammar:
        """A call of the client's tool with this qualified name."""

    def builtin_call_grammar(self, tool: str) -> Grammar:
        """A call of one of `builtins`."""

    def final_grammar(self, content: Grammar | None) -> Grammar:
        """The final message; None: any text."""

    def end_of_reasoning(self, grammar: Grammar | None) -> tuple[list[int], Grammar | None]:
        """What ends the reasoning that is being written, and the grammar of what follows.

        `grammar`: of the whole answer, from answer_grammar(); None: the final message follows.
        """

    # Vocabulary

    def write_vocabulary(self, folder: Path) -> Path:
        """Write the vocabulary's file unless it is there; return its path."""

    def encode_text(self, text: str) -> list[int]:
        """Encode text as ordinary ids, control tokens spelt out in it too."""

    def encode_marked(self, text: str) -> list[int]:
        """Encode text in which a control token's name means the token."""

    def decode_marked(self, token_ids: Iterable[int]) -> str:
        """The text of ids, control tokens spelt out; broken characters become U+FFFD."""

    def decode_bytes(self, token_id: int) -> bytes:
        """The bytes an id spells, which may be a part of a character; b"" if it spells none."""

    def is_ordinary(self, token_id: int) -> bool:
        """Whether the id spells text; control tokens and ids outside the vocabulary do not."""

    def name_of(self, token_id: int) -> str:
        """A control token as it is written; "" for an unknown id."""


def format_named(name: str) -> ChatFormat:
    """The format that the catalogue names; raises InvalidConstraint if none is called that."""
    if name == HARMONY:
        from service.harmony import format as harmony  # 0.1 s, which not every process needs

        return harmony
    found = facet(name, "format", ChatFormat)  # type: ignore[type-abstract]
    if found is None:
        known = ", ".join([HARMONY, *having("format")])
        raise InvalidConstraint(
            f"The model's chat format {name!r} is not installed (there are: {known}); choose "
            f"another model, or add parts/{name}/format.py."
        )
    return found
