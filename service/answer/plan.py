"""What to generate, decided before anything runs, and which built-in tools the answer has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from engines.base import LOWEST_PRIORITY, Adapter, EngineRequest, SamplingParams
from engines.grammar.tree import Grammar
from service.answer.tiers import Tier
from service.chat_format import ChatFormat
from service.conversation import NO_BUILTINS, Builtins
from service.guide.answer import AUTO, ToolChoice
from service.request import RequestContext
from service.tools import Toolbox

# The tool types of OpenAI's API that mean them.
BUILTIN_OF = {
    "code_interpreter": "python",
    "web_search": "browser",
    "web_search_2025_08_26": "browser",
    "web_search_preview": "browser",
    "web_search_preview_2025_03_11": "browser",
}


# chat: as the format has it; text: plain, without control tokens; marked: with them.
Output = Literal["chat", "text", "marked"]


@dataclass(frozen=True, slots=True)
class Hosted:
    """How the built-in tools of an answer are run."""

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

    def hosted(
        self, choice: ToolChoice, grammar: Callable[[ToolChoice], Grammar | None], *, is_shown: bool
    ) -> Hosted | None:
        """How the tools are run; `grammar` makes the grammar of a tool choice.

        A call that was required has been made when the next round begins; where the choice names a
        built-in tool, that may be called again.
        """
        if self.toolbox is None or not self.tools:
            return None
        limit = self.toolbox.max_calls
        following = AUTO if choice.mode == "required" and choice.names is None else choice
        if choice.builtins:
            following = replace(choice, mode="auto")
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
    """The tools that are wanted and connected, to be run here; other calls go to the client.

    `is_hidden`: the client wants no calls (`tool_choice` `none`).
    """
    if is_hidden:
        return NO_OFFERED_TOOLS
    tools = tuple(sorted(set(wanted) & toolbox.tools)) if toolbox else ()
    return OfferedTools(tools, Builtins(frozenset(tools), returns_others=True), toolbox, max_calls)


@dataclass(frozen=True, slots=True)
class Plan:
    """One API request in terms of tokens, whichever route it came by."""

    context: RequestContext
    format: ChatFormat  # in which the answer is read
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    max_model_len: int  # of prompt and answer together
    stop_token_ids: tuple[int, ...]
    tool_names: frozenset[str] = frozenset()
    custom_names: frozenset[str] = frozenset()  # of tool_names, those with free text
    # Of names of tools, what their calls are to the client, where the route has several kinds.
    tool_types: Mapping[str, str] | None = None
    builtins: Builtins = NO_BUILTINS  # what calls of `browser` and `python` are
    hosted: Hosted | None = None  # how those are run that this server runs
    stop: tuple[str, ...] = ()  # strings that end the visible text
    shows_stop: bool = False  # whether the text ends with that string
    num_choices: int = 1  # of each prompt
    max_calls: int | None = None  # the answer ends before one call more
    has_reasoning: bool = True  # whether the client is shown the chain of thought
    keeps_ids: bool = False  # whether the client is shown the tokens as they are
    keeps_logprobs: bool = False  # ... and the log-probabilities of all of them
    begun_ids: tuple[int, ...] = ()  # the answer begins with these; the engine continues after them
    is_resumed: bool = False  # an earlier run of ours generated those, and showed them
    grammar: Grammar | None = None  # what the answer may be
    grammar_param: str | None = None  # the field that asked for it
    priority: int = 0  # lower runs first
    tier: Tier = Tier.DEFAULT
    names_tier: bool = False  # whether the client asked for one
    more_prompts: tuple[tuple[int, ...], ...] = ()  # text completions may have several
    output: Output = "chat"
    cache_salt: str | None = None  # of the client, beside the tenant's
    adapter: Adapter | None = None  # that the model is computed with

    @property
    def _salt(self) -> str | None:
        tenant = self.context.cache_salt
        salt = tenant or None if self.cache_salt is None else f"{tenant}\0{self.cache_salt}"
        # No tenant's id begins like that: K/V of an adapter serve no other, and not the model.
        return salt if self.adapter is None else f"\1{self.adapter.key}\0{salt or ''}"

    @property
    def num_given(self) -> int:
        """Tokens at the beginning of the answer that the client gave."""
        return 0 if self.is_resumed else len(self.begun_ids)

    @property
    def prompts(self) -> tuple[tuple[int, ...], ...]:
        """All prompts; the choices of one prompt follow those of the previous one."""
        return (self.prompt_token_ids, *self.more_prompts)

    @property
    def shown_tier(self) -> Tier | None:
        """The tier where an answer tells it only to those that ask for one."""
        return self.tier if self.names_tier else None

    def for_job(self) -> Plan:
        """The same where no client waits for the answer: all other requests go first."""
        tier = Tier.FLEX if self.tier is Tier.FLEX else Tier.DEFAULT
        return replace(self, priority=LOWEST_PRIORITY, tier=tier)

    def engine_request(self, index: int) -> EngineRequest:
        """The engine's request for one choice; seeded choices differ from one another."""
        sampling, prompts = self.sampling, self.prompts
        prompt, choice = divmod(index, self.num_choices)
        if choice and sampling.seed is not None:
            sampling = replace(sampling, seed=(sampling.seed + choice) % (1 << 63))
        is_only = self.num_choices * len(prompts) == 1
        # Of several prompts each leaves room of its own.
        room = self.max_model_len - len(prompts[prompt])
        if room < sampling.max_tokens:
            sampling = replace(sampling, max_tokens=room)
        id = self.context.id
        return EngineRequest(
            request_id=id if is_only else f"{id}-{index}",
            prompt_token_ids=prompts[prompt],
            sampling=sampling,
            stop_token_ids=self.stop_token_ids,
            priority=self.priority,
            tenant=self.context.tenant,
            grammar=self.grammar,
            cache_salt=self._salt,
            generated_token_ids=self.begun_ids,
            extras=self.context.notes.for_engine,
            adapter=self.adapter,
        )
