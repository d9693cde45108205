"""Built-in tools: which of them an answer has, and what the model writes to those we run.

An answer with such tools is made in rounds, each a generation of the engine. A call ends a round;
its result joins the prompt behind what the model wrote, token for token, so that the next round
finds its prefix cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from engines.grammar.tree import Grammar
from service.guide.answer import AUTO, ToolChoice
from service.harmony.types import NO_BUILTINS, Builtins, Delta, DeltaKind, recipients_of
from service.tools.toolbox import Toolbox, ToolResult, ToolSession

# The tool types of OpenAI's API that mean them.
BUILTIN_OF = {
    "code_interpreter": "python",
    "web_search": "browser",
    "web_search_2025_08_26": "browser",
    "web_search_preview": "browser",
    "web_search_preview_2025_03_11": "browser",
}

_NO_MORE = ToolResult("Error: no more calls are allowed; answer with what is known.", True)


@dataclass(frozen=True, slots=True)
class Hosted:
    """How an answer's built-in tools are run."""

    toolbox: Toolbox
    max_calls: int
    is_shown: bool = False  # whether the answer has items for the calls
    next_grammar: Grammar | None = None  # of every round but the first


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """Which built-in tools an answer has: what its prompt, grammar and parser need to know."""

    tools: tuple[str, ...] = ()  # offered to the model, and run here
    builtins: Builtins = NO_BUILTINS
    toolbox: Toolbox | None = None
    max_calls: int | None = None  # the client's limit

    @property
    def recipients(self) -> frozenset[str]:
        return self.builtins.hosted

    def hosted(
        self, choice: ToolChoice, grammar: Callable[[ToolChoice], Grammar | None], *, is_shown: bool
    ) -> Hosted | None:
        """How the tools are run; `grammar` gives the one of a choice.

        A call that was required has been made when the next round begins.
        """
        if self.toolbox is None or not self.tools:
            return None
        limit = self.toolbox.limits.max_calls
        following = AUTO if choice.mode == "required" and choice.names is None else choice
        return Hosted(
            self.toolbox,
            limit if self.max_calls is None else min(self.max_calls, limit),
            is_shown,
            grammar(following),
        )


NO_OFFERED_TOOLS = OfferedTools()


def offered_tools(
    toolbox: Toolbox | None,
    wanted: Iterable[str] = (),
    *,
    is_hidden: bool = False,
    max_calls: int | None = None,
) -> OfferedTools:
    """What is wanted and connected is run here; other calls go to the client.

    `is_hidden`: the client wants no calls (`tool_choice` `none`).
    """
    if is_hidden:
        return NO_OFFERED_TOOLS
    tools = tuple(sorted(set(wanted) & toolbox.tools)) if toolbox else ()
    hosted = recipients_of(tools)
    return OfferedTools(tools, Builtins(hosted, returns_others=True), toolbox, max_calls)


class HostedCalls:
    """The calls of one choice: collects what the model writes to a tool."""

    def __init__(self, hosted: Hosted) -> None:
        self.num_calls = 0
        self.num_result_tokens = 0
        self.round_ids: list[int] = []  # generated since the last result
        self._hosted = hosted
        self._name = ""
        self._input: list[str] = []
        self.is_whole = False  # a call waits for its result

    def take(self, delta: Delta) -> list[Delta]:
        """Take a piece of a call; give the call once it is whole, if it is shown."""
        if delta.kind is DeltaKind.HOSTED_END:
            self.is_whole = True
            return self._shown()
        self._name = delta.name
        self._input.append(delta.text)
        return []

    def cut(self) -> list[Delta]:
        """The call that the answer's end cut off, if it is shown."""
        return self._shown() if self._name and not self.is_whole else []

    def _shown(self) -> list[Delta]:
        call = Delta(DeltaKind.HOSTED_CALL, "".join(self._input), name=self._name)
        return [call] if self._hosted.is_shown else []

    async def run(self, session: ToolSession) -> tuple[str, ToolResult]:
        """Run the call that waits; gives its tool's name and its result."""
        name, written = self._name, "".join(self._input)
        self._name, self._input, self.is_whole = "", [], False
        self.num_calls += 1
        if self.num_calls > self._hosted.max_calls:
            return name, _NO_MORE
        return name, await session.call(name, written)

    @property
    def is_exhausted(self) -> bool:
        """Whether the model went on to call after it was told that it may not."""
        return self.num_calls > self._hosted.max_calls

    def show(self, result: ToolResult) -> Sequence[Delta]:
        """The result, if the client is told."""
        status = "failed" if result.is_error else "completed"
        shown = Delta(DeltaKind.HOSTED_RESULT, result.text, name=status)
        return [shown] if self._hosted.is_shown else []
