"""What to generate, decided before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from engines.base import EngineRequest, SamplingParams
from engines.grammar.tree import Grammar
from service.answer.hosted import Hosted
from service.harmony.types import NO_BUILTINS, Builtins
from service.harmony.vocabulary import STOP_TOKEN_IDS
from service.request import RequestContext

# harmony: channels and calls; text: as it stands, without control tokens; marked: with them.
Output = Literal["harmony", "text", "marked"]


@dataclass(frozen=True, slots=True)
class Plan:
    """One API request in terms of tokens, whatever route it came by."""

    context: RequestContext
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    tool_names: frozenset[str] = frozenset()
    custom_names: frozenset[str] = frozenset()  # of tool_names, those with free text
    builtins: Builtins = NO_BUILTINS  # what calls of `browser` and `python` are
    hosted: Hosted | None = None  # how those are run that this server runs
    stop: tuple[str, ...] = ()  # strings that end the visible text
    num_choices: int = 1  # of each prompt
    max_calls: int | None = None  # the answer ends before one call more
    has_reasoning: bool = True  # whether the client is shown the chain of thought
    grammar: Grammar | None = None  # what the answer may be
    grammar_param: str | None = None  # the field that asked for it
    priority: int = 0  # lower runs first
    more_prompts: tuple[tuple[int, ...], ...] = ()  # text completions may have several
    output: Output = "harmony"
    stop_token_ids: tuple[int, ...] = STOP_TOKEN_IDS

    @property
    def prompts(self) -> tuple[tuple[int, ...], ...]:
        """All prompts; the choices of one follow those of the one before."""
        return (self.prompt_token_ids, *self.more_prompts)

    def engine_request(self, index: int) -> EngineRequest:
        """Choice `index` as the engine sees it; seeded choices differ from one another."""
        sampling, prompts = self.sampling, self.prompts
        prompt, choice = divmod(index, self.num_choices)
        if choice and sampling.seed is not None:
            sampling = replace(sampling, seed=(sampling.seed + choice) % (1 << 63))
        is_only = self.num_choices * len(prompts) == 1
        id = self.context.id
        return EngineRequest(
            request_id=id if is_only else f"{id}-{index}",
            prompt_token_ids=prompts[prompt],
            sampling=sampling,
            stop_token_ids=self.stop_token_ids,
            priority=self.priority,
            tenant=self.context.tenant,
            grammar=self.grammar,
            cache_salt=self.context.cache_salt or None,
        )
