"""An engine under load: users who wait for an answer and then ask again.

In each step each of B sequences gets one token, and B / osl of them end. The same number of new
prompts takes their place, so a step computes B tokens and these prompts. Users therefore get tokens
more slowly than with decoding alone, and a new prompt waits for the prompts before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from parts.plan.constants import Constants
from parts.plan.work import PlannedEngine, Work, decode_work, prefill_work

TAIL = 0.05  # of the first tokens may come later than `ttft_tail_s`


@dataclass(frozen=True, slots=True)
class Workload:
    """What one engine is asked for."""

    num_users: int
    isl: int
    osl: int


@dataclass(frozen=True, slots=True)
class Speed:
    """What the users of one engine get, and what it makes of its GPUs."""

    tokens_per_s_per_user: float  # between the first and the last token
    tokens_per_s: float  # of all users, in the long run
    ttft_s: float  # mean time to the first token
    ttft_tail_s: float  # p95


def mean_context(isl: int, osl: int) -> float:
    """Return how many tokens a sequence holds on the average while it is answered."""
    return isl + osl / 2


def speed(constants: Constants, deployment: PlannedEngine, load: Workload) -> Speed:
    """Estimate how fast `load` is served; its users are those of all the engine's GPUs."""
    users, isl, osl = load.num_users, load.isl, load.osl
    decode_s = constants.seconds(decode_work(deployment, users, mean_context(isl, osl)))
    prompt_s = constants.seconds(prompt_work(deployment, users, isl, osl))
    step_s = decode_s + users / osl * prompt_s
    own_s = constants.seconds(prefill_work(deployment, isl))
    alone_s = own_s + max(1.0, isl / deployment.step_tokens) * (decode_s if users > 1 else 0.0)
    busy = users / osl * prompt_s / step_s  # the share of time that goes to prompts
    scale_s = own_s / (2 * (1 - busy))  # of the wait, if a prompt has to wait
    ttft_s = alone_s + busy * scale_s
    return Speed(
        tokens_per_s_per_user=1 / (decode_s + (users - 1) / osl * prompt_s),
        tokens_per_s=users / step_s,
        ttft_s=ttft_s,
        ttft_tail_s=max(ttft_s, alone_s + scale_s * log(busy / TAIL)),
    )


def prompt_work(deployment: PlannedEngine, num_users: int, isl: int, osl: int) -> Work:
    """One prompt's share of a prefill step, which holds all prompts that arrive during a step."""
    at_once = min(num_users / osl / deployment.num_ranks, deployment.step_tokens / isl)
    at_once = max(1.0, at_once)
    return prefill_work(deployment, isl, at_once) * (1 / (at_once * deployment.num_ranks))
