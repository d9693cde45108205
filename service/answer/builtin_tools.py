"""Which built-in tools a request's answer has, and what becomes of their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engines.grammar.tree import Grammar
from service.answer.hosted import Hosted
from service.guide.answer import AUTO, ToolChoice
from service.harmony.builtin import NO_BUILTINS, Builtins, recipients_of
from service.tools.toolbox import Toolbox

# The tool types of OpenAI's API that mean them.
BUILTIN_OF = {
    "code_interpreter": "python",
    "web_search": "browser",
    "web_search_2025_08_26": "browser",
    "web_search_preview": "browser",
    "web_search_preview_2025_03_11": "browser",
}


@dataclass(frozen=True, slots=True)
class Offer:
    """What the prompt, the grammar and the parser need to know of built-in tools."""

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


NO_OFFER = Offer()


def offer_of(
    toolbox: Toolbox | None,
    wanted: Iterable[str] = (),
    *,
    is_hidden: bool = False,
    max_calls: int | None = None,
) -> Offer:
    """What is wanted and connected is run here; other calls go to the client.

    `is_hidden`: the client wants no calls (`tool_choice` `none`).
    """
    if is_hidden:
        return NO_OFFER
    tools = tuple(sorted(set(wanted) & toolbox.tools)) if toolbox else ()
    hosted = recipients_of(tools)
    return Offer(tools, Builtins(hosted, returns_others=True), toolbox, max_calls)
