"""A scripted engine whose next token has given probabilities, by the text before it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from math import exp, log
from typing import Any

from engines.base import (
    EngineRequest,
    FinishReason,
    OnEntered,
    TokenEvent,
    TokenLogprob,
    ignore,
)
from service.harmony.vocabulary import decode_marked, encode_marked, encode_text
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Likely = Callable[[str], Mapping[str, float]]  # from the prompt's text; codes with probabilities

_REST = 100  # has what the codes leave of the probability


class ScoredEngine(FakeEngine):
    """Tells of `num_told` likeliest tokens at most; keeps what it was asked. Where a grammar lets
    it, it writes `thoughts` first."""

    def __init__(
        self, likely: Likely, num_told: int = 20, thoughts: str = "", **options: Any
    ) -> None:
        super().__init__(FakeOptions(script=(_REST,), **options))
        self._likely, self._num_told = likely, num_told
        self._thoughts = encode_marked(thoughts)
        self.asked: list[EngineRequest] = []

    async def generate(
        self, request: EngineRequest, on_entered: OnEntered = ignore
    ) -> AsyncGenerator[TokenEvent, None]:
        """The likeliest token, or the one that a bias makes it."""
        self.asked.append(request)
        await self.check_health()
        on_entered()
        thoughts = self._thoughts if request.grammar is not None else []
        for token_id in thoughts:
            yield TokenEvent((token_id,), (TokenLogprob(token_id, 0.0),))
        likely = self._likely(decode_marked([*request.prompt_token_ids, *thoughts]))
        logprobs = {encode_text(code)[0]: log(each) for code, each in likely.items()}
        logprobs[_REST] = log(max(1 - sum(map(exp, logprobs.values())), 1e-12))
        ranked = sorted(logprobs.items(), key=lambda pair: -pair[1])
        forced = max(request.sampling.logit_bias, default=ranked[0][0])
        num_top = min(request.sampling.logprobs or 0, self._num_told)
        told = TokenLogprob(forced, logprobs[forced], tuple(ranked[:num_top]))
        yield TokenEvent((forced,), (told,), FinishReason.LENGTH)
