"""In which order runnable profiles come, and the words that say why one precedes another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from profiles.catalogue.models import Goal
from profiles.catalogue.parameters import num_parameters
from profiles.hardware.gpus import BY_KEY
from profiles.hardware.machine import Family, Gpu
from profiles.selection.engine_order import Order, order_on
from profiles.selection.verdicts import Candidate, Constraints

ENOUGH_CONTEXT = 98_304  # tokens, three quarters: with less a smaller model serves better
SHORT_CONTEXT = 16_384  # tokens, an eighth: with less, many prompts with tools do not fit
FEW_TOKENS = 256  # of K/V for a sequence of the batch: with less, the batch is a promise
MANY_TOKENS = 262_144  # of K/V: with less an engine is full of two long conversations

# For each goal asked, the goals a profile may have, best first.
_GOALS: Mapping[Goal, tuple[Goal, ...]] = {
    "latency": ("latency", "balanced", "throughput"),
    "balanced": ("balanced", "throughput", "latency"),
    "throughput": ("throughput", "balanced", "latency"),
}
_STATUSES = ("tuned", "published", "untuned", "compiled", "planned")
_BITS = {"mxfp4": 4, "bf16": 16, "fp32": 32}
# Of a GPU that is in no table, and of a slice: what its generation's slowest board has.
_LEAST_TB_PER_S: Mapping[Family, float] = {"hopper": 2.0, "blackwell": 0.273, "ada": 0.272}

Place = tuple[tuple[int, ...], str]


@dataclass(frozen=True, slots=True)
class _Criterion:
    """A key, the smaller the better, and why the smaller is better."""

    key: Callable[[Candidate, Constraints], int]
    words: str


def goal_of(constraints: Constraints) -> Goal:
    return constraints.goal or "balanced"


def rank(candidate: Candidate, constraints: Constraints) -> Place:
    """Return the sort key of candidates; the name makes the order total."""
    keys = tuple(criterion.key(candidate, constraints) for criterion in _CRITERIA)
    return keys, candidate.profile.title


def why_first(first: Candidate, other: Candidate, constraints: Constraints) -> str:
    """Say at which criterion `first` comes before `other`."""
    for criterion in _CRITERIA:
        if criterion.key(first, constraints) != criterion.key(other, constraints):
            return criterion.words.format(
                goal=goal_of(constraints),
                because=_order(first, constraints).because,
                engine=first.profile.engine,
                context=first.max_model_len,
                other_context=other.max_model_len,
            )
    return "its name comes first"


def is_context_kept(candidate: Candidate) -> bool:
    """Whether the context is as long as the profile says, or long enough for most."""
    longest = candidate.profile.limits.max_model_len
    return candidate.max_model_len >= min(ENOUGH_CONTEXT, longest)


def _order(candidate: Candidate, constraints: Constraints) -> Order:
    gpus = candidate.placement.gpus
    return order_on(gpus[0] if gpus else None, candidate.profile, goal_of(constraints))


def _shortness(candidate: Candidate, constraints: Constraints) -> int:
    """Return 0 for three quarters of the context at least, 1 for an eighth, 2 for less."""
    if constraints.max_model_len is not None or is_context_kept(candidate):
        return 0
    return 1 if candidate.max_model_len >= SHORT_CONTEXT else 2


def _size_on_gpu(candidate: Candidate, _: Constraints) -> int:
    profile = candidate.profile
    return 0 if profile.gpu is None else -num_parameters(profile.model.shape)


def _size_on_cpu(candidate: Candidate, _: Constraints) -> int:
    profile = candidate.profile
    return 0 if profile.gpu is not None else num_parameters(profile.model.shape)


def _goal_distance(candidate: Candidate, constraints: Constraints) -> int:
    return _GOALS[goal_of(constraints)].index(candidate.profile.goal)


def _engine(candidate: Candidate, constraints: Constraints) -> int:
    return _order(candidate, constraints).engines.index(candidate.profile.engine)


def _is_starved(candidate: Candidate, _: Constraints) -> int:
    """Whether memory runs out long before the batch is full."""
    placement = candidate.placement
    if not placement.gpus:
        return 0
    return placement.kv_tokens < FEW_TOKENS * placement.limits.max_num_seqs


def _slowness(candidate: Candidate, constraints: Constraints) -> int:
    """Compare kinds of GPUs by memory bandwidth: of one GPU for latency, else of all there are."""
    placement = candidate.placement
    if not placement.gpus:
        return 0
    count = 1 if goal_of(constraints) == "latency" else placement.num_alike
    return -round(1000 * _tb_per_s(placement.gpus[0]) * count)


def _tb_per_s(gpu: Gpu) -> float:
    known = BY_KEY.get(gpu.key or "")
    return known.memory_tb_per_s if known else _LEAST_TB_PER_S.get(gpu.family, 0.2)


def _is_crowded(candidate: Candidate, constraints: Constraints) -> int:
    if goal_of(constraints) == "latency" or candidate.profile.gpu is None:
        return 0
    return candidate.placement.kv_tokens < MANY_TOKENS


def _waits(candidate: Candidate, _: Constraints) -> int:
    """Whether a token waits for GPUs that PCIe joins, or that compute one after another."""
    return candidate.placement.crosses_pcie or candidate.profile.parallelism.pp > 1


def _shares_layers(candidate: Candidate, constraints: Constraints) -> int:
    """Whether GPUs share what, as the native engine was measured, is faster side by side."""
    split, goal = candidate.profile.parallelism, goal_of(constraints)
    return candidate.profile.engine == "native" and split.tp > 1 and goal != "latency"


def _on_each_token(candidate: Candidate, constraints: Constraints) -> int:
    """More GPUs shorten a token's time if NVLink connects them."""
    placement = candidate.placement
    is_joined = bool(placement.gpus) and not placement.crosses_pcie
    is_worth = goal_of(constraints) == "latency" and is_joined
    return -candidate.profile.parallelism.tp if is_worth else 0


def _of_an_engine(candidate: Candidate, _: Constraints) -> int:
    split = candidate.profile.parallelism
    return split.tp * split.pp


def _memory_left_idle(candidate: Candidate, _: Constraints) -> int:
    return -sum(gpu.total_bytes for gpu in candidate.placement.gpus)


def _specificity(candidate: Candidate, _: Constraints) -> int:
    """Return 0 for a named GPU, 1 for a generation, 2 for any; a CPU is all it can be."""
    gpu = candidate.profile.gpu
    if gpu is None or gpu.names:
        return 0
    return 1 if gpu.family else 2


_CRITERIA = (
    _Criterion(lambda c, _: c.profile.model.is_demonstration, "it is not the demonstration model"),
    _Criterion(lambda c, _: c.profile.gpu is None, "it runs on a GPU instead of the CPU"),
    _Criterion(lambda c, _: c.profile.gpu_layers is not None, "the GPU computes all layers"),
    _Criterion(
        _shortness,
        "it keeps a context of {context:,} tokens, and the other has {other_context:,}",
    ),
    _Criterion(
        lambda c, _: -(c.profile.gpu_layers or 0), "more of its layers are computed on the GPU"
    ),
    _Criterion(
        _waits,
        "its GPUs do not wait for each other at each token, over PCIe or in a pipeline",
    ),
    _Criterion(_size_on_gpu, "it serves the larger model"),
    _Criterion(_size_on_cpu, "it serves the smaller model, which is faster on a CPU"),
    _Criterion(_goal_distance, "it is closer to the goal ({goal})"),
    _Criterion(_is_starved, "its KV cache holds the whole batch"),
    _Criterion(_slowness, "it uses the faster GPUs of this machine"),
    _Criterion(_engine, "{engine} is preferred here: {because}"),
    _Criterion(
        _shares_layers,
        "several engines on few GPUs each generate more tokens/s than one engine on many",
    ),
    _Criterion(_is_crowded, "its memory holds more conversations at once"),
    _Criterion(_on_each_token, "more GPUs work on each token, which lowers latency"),
    _Criterion(
        _of_an_engine,
        "several engines on few GPUs each generate more tokens/s than one engine on many",
    ),
    _Criterion(_memory_left_idle, "it uses more of the machine"),
    _Criterion(lambda c, _: _STATUSES.index(c.profile.status), "its settings are better tested"),
    _Criterion(lambda c, _: _BITS[c.profile.precision], "it uses fewer bits per weight"),
    _Criterion(_specificity, "it is more specific to this hardware"),
)
