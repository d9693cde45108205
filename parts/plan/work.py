"""The work of one step: bytes to read, operations to compute, messages to exchange.

Decode: each sequence of a batch gets one token. The step reads all dense weights once, the weights
of those experts that at least one token is routed to, and the K/V of every sequence (one window in
sliding layers). Prefill: the same for all tokens of a prompt.

With tensor parallelism each GPU does its share of everything, and two all-reduces end each layer.
With attention data parallelism each GPU has its own sequences and all dense weights; the inputs and
outputs of the experts travel between the GPUs.

With pipeline stages the GPUs do the same work one after another, and pass on the residual stream.
The estimate ignores that stages process different chunks of a prompt at the same time.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from math import log, sqrt

from profiles.catalogue.models import ModelShape, Parallelism
from profiles.catalogue.parameters import (
    attention_parameters,
    expert_parameters,
    router_parameters,
    vocabulary_parameters,
)
from profiles.hardware.gpus import KnownGpu

BF16_BYTES = 2
# A large NVLink all-reduce of NCCL moved 240 of 450 GB/s: 11.8 MB between two H100 took 49 µs
# longer than one of a row.
LINK_SHARE = 0.5
# Without NVLink between them GPUs also wait longer for each other; assumed, not measured.
PCIE_EXCHANGE_S = 30e-6
PCIE_GB_PER_S = 32.0
# A token passed two stages of gpt-oss-120b, and came back, in 69 µs more than one GPU took (H200).
HANDOVER_S = 35e-6


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    """One engine: a model in some precision, spread over GPUs of one kind."""

    shape: ModelShape
    gpu: KnownGpu
    split: Parallelism = field(default_factory=Parallelism)
    dense_bytes: float = 2  # of a weight outside the experts
    packed_bytes: float = 4.25 / 8  # of an expert's weight
    kv_bytes: float = 2
    step_tokens: int = 8192  # of prompts in one step; longer ones take several

    @property
    def num_ranks(self) -> int:
        """How many sets of sequences there are: under attention DP one for each GPU."""
        return self.split.tp if self.split.attention_dp else 1

    @property
    def attention_split(self) -> int:
        """Over how many GPUs the weights outside the experts are cut."""
        return 1 if self.split.attention_dp else self.split.tp


@dataclass(frozen=True, slots=True)
class Work:
    """What one GPU has to do in one step or several; seconds are those of its data sheet."""

    memory_s: float = 0.0
    compute_s: float = 0.0
    link_s: float = 0.0  # on top of what an exchange costs however short it is
    decode_layers: float = 0.0
    prefill_layers: float = 0.0
    sequences: float = 0.0
    exchanges: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, factor: float) -> Work:
        return Work(*(factor * value for value in astuple(self)))


def expected_experts(shape: ModelShape, num_tokens: float) -> float:
    """Return how many experts of a layer some token is sent to, all being equally likely.

    Routing of real text is skewed, so that the true number is a little smaller.
    """
    missed = 1 - shape.num_experts_per_tok / shape.num_local_experts
    return float(shape.num_local_experts * (1 - missed**num_tokens))


def decode_work(deployment: PlannedEngine, num_sequences: float, context: float) -> Work:
    """Return the work of a decode step: `num_sequences` on all GPUs, `context` tokens each."""
    own = num_sequences / deployment.num_ranks
    tokens_read = own * _attended(deployment.shape, context)
    kv_bytes = tokens_read * _kv_bytes_per_token(deployment) / deployment.attention_split
    return Work(
        memory_s=_memory_s(deployment, _weight_bytes(deployment, num_sequences) + kv_bytes),
        compute_s=_compute_s(deployment, num_sequences, tokens_read, has_logits=True),
        link_s=_link_s(deployment, num_sequences),
        decode_layers=deployment.shape.num_hidden_layers,
        sequences=own,
        exchanges=_num_exchanges(deployment),
    )


def prefill_work(deployment: PlannedEngine, prompt_tokens: int, num_prompts: float = 1) -> Work:
    """Return the work of `num_prompts` prompts for each rank, in as many steps as that takes."""
    shape, own_tokens = deployment.shape, num_prompts * prompt_tokens
    tokens = own_tokens * deployment.num_ranks
    num_steps = max(1.0, own_tokens / deployment.step_tokens)
    in_full_layers = shape.num_full_layers * prompt_tokens / 2
    in_windows = (shape.num_hidden_layers - shape.num_full_layers) * min(
        shape.sliding_window, prompt_tokens
    )
    weights = num_steps * _weight_bytes(deployment, tokens / num_steps)
    return Work(
        memory_s=_memory_s(deployment, weights),
        compute_s=_compute_s(
            deployment, tokens, own_tokens * (in_full_layers + in_windows), has_logits=False
        ),
        link_s=_link_s(deployment, tokens),
        prefill_layers=num_steps * shape.num_hidden_layers,
        exchanges=num_steps * _num_exchanges(deployment),
    )


def _attended(shape: ModelShape, context: float) -> float:
    """Positions that one token attends to, summed over the layers."""
    sliding = shape.num_hidden_layers - shape.num_full_layers
    return shape.num_full_layers * context + sliding * min(context, shape.sliding_window)


def _kv_bytes_per_token(deployment: PlannedEngine) -> float:
    """K and V of one position in one layer."""
    shape = deployment.shape
    return 2 * shape.num_key_value_heads * shape.head_dim * deployment.kv_bytes


def _weight_bytes(deployment: PlannedEngine, num_tokens: float) -> float:
    """Bytes of weights that one GPU reads in a step of `num_tokens` tokens of all GPUs."""
    shape = deployment.shape
    attention = attention_parameters(shape) * deployment.dense_bytes / deployment.attention_split
    router = router_parameters(shape) * deployment.dense_bytes
    weights, biases = expert_parameters(shape)
    expert = weights * deployment.packed_bytes + biases * deployment.dense_bytes
    experts = expected_experts(shape, num_tokens) * expert / deployment.split.tp
    unembedding = vocabulary_parameters(shape) * deployment.dense_bytes
    layers = shape.num_hidden_layers * (attention + router + experts)
    return layers + unembedding / deployment.attention_split


def _memory_s(deployment: PlannedEngine, num_bytes: float) -> float:
    return num_bytes / (deployment.gpu.memory_tb_per_s * 1e12)


def _compute_s(
    deployment: PlannedEngine, tokens: float, tokens_attended: float, *, has_logits: bool
) -> float:
    """`tokens` of all GPUs; `tokens_attended` positions of all layers by this rank's sequences."""
    shape, split = deployment.shape, deployment.split
    own = tokens / deployment.num_ranks
    dense = shape.num_hidden_layers * (attention_parameters(shape) + router_parameters(shape))
    dense += vocabulary_parameters(shape) if has_logits else 0
    experts = shape.num_hidden_layers * shape.num_experts_per_tok * expert_parameters(shape)[0]
    scores = 2 * tokens_attended * shape.num_attention_heads * shape.head_dim
    per_gpu = (own * dense + scores) / deployment.attention_split
    per_gpu += _imbalance(deployment, tokens) * tokens * experts / split.tp
    return 2 * per_gpu / (deployment.gpu.bf16_tflops * 1e12)


def _imbalance(deployment: PlannedEngine, tokens: float) -> float:
    """How much more than the average the busiest of several GPUs with whole experts gets.

    The largest of n nearly normal counts is sqrt(2 ln n) deviations above their mean.
    """
    num = deployment.split.ep
    if num == 1:
        return 1.0
    mean = tokens * deployment.shape.num_experts_per_tok / num
    return min(float(num), 1 + sqrt(2 * log(num) / mean))


def _num_exchanges(deployment: PlannedEngine) -> float:
    """Two for each layer: sums after attention and experts, or tokens there and back."""
    return 2.0 * deployment.shape.num_hidden_layers if deployment.split.tp > 1 else 0.0


def _link_s(deployment: PlannedEngine, tokens: float) -> float:
    """The bytes of all exchanges of a step over the link, or over PCIe where there is none."""
    shape, split = deployment.shape, deployment.split
    if split.pp > 1:
        return _handovers_s(deployment, tokens)
    others = split.tp - 1
    row_bytes = shape.hidden_size * BF16_BYTES
    if split.attention_dp:  # a row goes to every other GPU that has one of its experts
        reached = others * (1 - (1 - 1 / split.tp) ** shape.num_experts_per_tok)
        per_exchange = tokens / split.tp * reached * row_bytes
    else:  # a ring: every GPU sends and gets each row nearly twice
        per_exchange = 2 * others / split.tp * tokens * row_bytes
    is_linked = split.tp <= deployment.gpu.num_linked
    rate = deployment.gpu.link_gb_per_s if is_linked else PCIE_GB_PER_S
    each_s = per_exchange / (LINK_SHARE * rate * 1e9) + (0.0 if is_linked else PCIE_EXCHANGE_S)
    return _num_exchanges(deployment) * each_s


def _handovers_s(deployment: PlannedEngine, tokens: float) -> float:
    """The residual stream in float32 from stage to stage, and the tokens back to the first."""
    stages, is_linked = deployment.split.pp, deployment.split.pp <= deployment.gpu.num_linked
    rate = deployment.gpu.link_gb_per_s if is_linked else PCIE_GB_PER_S
    row_bytes = 4 * deployment.shape.hidden_size
    copy_s = (stages - 1) * tokens * row_bytes / (LINK_SHARE * rate * 1e9)
    return copy_s + stages * (HANDOVER_S + (0.0 if is_linked else PCIE_EXCHANGE_S))
