"""How much memory a profile needs, from the model's shape.

All bytes are per device (a GPU, or the machine's RAM for a CPU profile). Weights:
attention and the two vocabulary matrices are split over tp (not under attention DP,
where each GPU holds them all), experts over tp whether by tensor or by expert. KV
cache: only full-attention layers grow with the context; each sequence also holds
one window in every sliding layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from profiles.machine import GB
from profiles.models import ModelShape, Precision, Profile

# Bytes per weight of (attention, router, vocabulary) and of experts. MXFP4 packs 32
# weights of 4 bits with one scale byte; what it does not cover stays in bf16.
WEIGHT_BYTES: dict[Precision, tuple[float, float]] = {
    "mxfp4": (2, 4.25 / 8),
    "bf16": (2, 2),
    "fp32": (4, 4),
}
KV_BYTES = {"fp8": 1, "bf16": 2, "fp32": 4}
# Context, kernels' workspaces, activations and captured graphs on a GPU; Python,
# torch and activations on a CPU.
GPU_WORKSPACE_BYTES = 4 * GB
CPU_WORKSPACE_BYTES = 1 * GB
CONTEXT_STEP = 1024  # a shortened context is a multiple of this many tokens


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What one device must hold."""

    weights_bytes: int
    workspace_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_sequence: int

    @property
    def fixed_bytes(self) -> int:
        return self.weights_bytes + self.workspace_bytes

    def total_bytes(self, num_tokens: int) -> int:
        """Return the bytes needed to serve one sequence of `num_tokens`."""
        return self.fixed_bytes + self.kv_bytes_per_sequence + num_tokens * self.kv_bytes_per_token

    def num_tokens(self, budget_bytes: int) -> int:
        """Return how many tokens of one sequence fit `budget_bytes`, at least 0."""
        free = budget_bytes - self.fixed_bytes - self.kv_bytes_per_sequence
        return max(0, free // self.kv_bytes_per_token)

    def max_model_len(self, budget_bytes: int) -> int:
        """Return the longest context, a multiple of CONTEXT_STEP, that fits; 0 if none."""
        return self.num_tokens(budget_bytes) // CONTEXT_STEP * CONTEXT_STEP


def memory_need(profile: Profile) -> MemoryNeed:
    """Compute what each device of `profile` must hold."""
    shape, split = profile.model.shape, profile.parallelism
    attention_split = 1 if split.attention_dp else split.tp
    layers = ceil(shape.num_hidden_layers / split.pp)
    full_layers = min(layers, ceil(shape.num_full_layers / split.pp))
    heads = max(1, shape.num_key_value_heads // attention_split)
    kv_bytes = 2 * heads * shape.head_dim * KV_BYTES[profile.kv_dtype]  # of a layer, per token
    return MemoryNeed(
        weights_bytes=_weights_bytes(profile, layers, attention_split),
        workspace_bytes=CPU_WORKSPACE_BYTES if profile.gpu is None else GPU_WORKSPACE_BYTES,
        kv_bytes_per_token=full_layers * kv_bytes,
        kv_bytes_per_sequence=(layers - full_layers) * shape.sliding_window * kv_bytes,
    )


def num_parameters(shape: ModelShape) -> int:
    """Count all weights of the model; ranks models by size."""
    layer = attention_parameters(shape) + router_parameters(shape)
    layer += shape.num_local_experts * sum(expert_parameters(shape))
    return shape.num_hidden_layers * layer + 2 * vocabulary_parameters(shape) + shape.hidden_size


def attention_parameters(shape: ModelShape) -> int:
    """Count one layer's attention: projections with biases, sinks and both norms."""
    query, key = (
        shape.num_attention_heads * shape.head_dim,
        shape.num_key_value_heads * shape.head_dim,
    )
    projections = shape.hidden_size * (2 * query + 2 * key)
    biases = query + 2 * key + shape.hidden_size
    return projections + biases + shape.num_attention_heads + 2 * shape.hidden_size


def router_parameters(shape: ModelShape) -> int:
    """Count one layer's router."""
    return (shape.hidden_size + 1) * shape.num_local_experts


def expert_parameters(shape: ModelShape) -> tuple[int, int]:
    """Count one expert's weights, which MXFP4 packs, and its biases, which stay bf16."""
    weights = 3 * shape.hidden_size * shape.intermediate_size
    return weights, 2 * shape.intermediate_size + shape.hidden_size


def vocabulary_parameters(shape: ModelShape) -> int:
    """Count the embedding, and as many again for the unembedding."""
    return shape.vocab_size * shape.hidden_size


def _weights_bytes(profile: Profile, layers: int, attention_split: int) -> int:
    shape, tp = profile.model.shape, profile.parallelism.tp
    dense, packed = WEIGHT_BYTES[profile.precision]
    weights, biases = expert_parameters(shape)
    experts = shape.num_local_experts * (weights * packed + biases * dense) / tp
    attention = attention_parameters(shape) * dense / attention_split
    layer = attention + router_parameters(shape) * dense + experts
    # With pipeline stages the first holds the embedding and the last the unembedding.
    num_matrices = 2 if profile.parallelism.pp == 1 else 1
    vocabulary = num_matrices * vocabulary_parameters(shape) * dense / attention_split
    return int(layers * layer + vocabulary + shape.hidden_size * dense)
