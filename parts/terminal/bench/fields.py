"""What sampling fields cost: the same load with each of them, beside one without."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from parts.terminal.bench.bodies import Bodies
from parts.terminal.bench.exchange import Connector, all_ended
from parts.terminal.bench.traffic import Traffic

PLAIN: Final = "plain"
WHOLE: Final = "plain, not streamed"
_SCORED: Final = "prompt logprobs 1, not streamed"
_PENALTIES: Final = {
    "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1,
}  # fmt: skip
_FILTERS: Final = {"top_p": 0.9, "top_k": 40, "min_p": 0.05}
_CASES: Final[dict[str, dict[str, Any]]] = {
    PLAIN: {},
    "seed": {"seed": 1},
    "stop": {"stop": ["\u2060\u2060"]},  # word joiners, which no model writes
    "greedy": {"temperature": 0},
    "logit_bias of 300": {"logit_bias": {str(500 * i): 1 for i in range(300)}},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 40": {"top_k": 40},
    "min_p 0.05": {"min_p": 0.05},
    "two penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    "three penalties": _PENALTIES,
    "logprobs 5": {"logprobs": 5},
    "all together": {**_FILTERS, **_PENALTIES, "logprobs": 5, "seed": 1},
    WHOLE: {"stream": False},
    _SCORED: {"stream": False, "prompt_logprobs": 1},  # which servers do not stream
}


def cases(*, is_in_tokens: bool) -> dict[str, dict[str, Any]]:
    """The fields of each case, as completions or the chat API has them."""
    return _CASES if is_in_tokens else {name: _of_chat(each) for name, each in _CASES.items()}


def _of_chat(asked: dict[str, Any]) -> dict[str, Any]:
    if "logprobs" not in asked:
        return asked
    return {**asked, "logprobs": True, "top_logprobs": asked["logprobs"]}


@dataclass(frozen=True, slots=True)
class Fields:
    """Streams at once with each case in turn, and again; shares are of the plain ones."""

    streams: int = 32
    rounds: int = 3
    prompt: int = 128
    answer: int = 128

    async def run(self, connector: Connector, seed: int) -> Traffic:
        bodies, traffic = Bodies(connector), Traffic()
        traffic.references = dict.fromkeys(_CASES, PLAIN) | dict.fromkeys((WHOLE, _SCORED), WHOLE)
        async with traffic.timed():
            for _ in range(self.rounds):
                for name, asked in cases(is_in_tokens=bodies.is_in_tokens).items():
                    sent = bodies.several(self.streams, self.prompt, self.answer, **asked)
                    began = time.perf_counter()
                    await all_ended([traffic.add(name, bodies.start(body)) for body in sent])
                    spent = time.perf_counter() - began
                    traffic.busy_s[name] = traffic.busy_s.get(name, 0.0) + spent
        return traffic
