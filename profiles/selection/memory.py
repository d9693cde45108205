"""How much memory a profile needs, from the model's shape.

All bytes are per device (a GPU, or the machine's RAM for a CPU profile). Weights:
attention and the two vocabulary matrices are split over tp (not under attention DP,
where each GPU holds them all), experts over tp whether by tensor or by expert. Work
space: what the engine takes in any case, the activations of one step and the sampler's
rows. KV cache: only full-attention layers grow with the context; each sequence also
holds one window in every sliding layer. An EAGLE3 head is split as attention is, and its layer
sees the whole context.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from profiles.catalogue.engines import KnownEngine, engine_of
from profiles.catalogue.models import ModelShape, Precision, Profile
from profiles.catalogue.parameters import (
    DRAFT_LAYERS,
    attention_parameters,
    draft_parameters,
    expert_parameters,
    num_parameters,
    router_parameters,
    vocabulary_parameters,
)
from profiles.hardware.machine import GB

# Bytes per weight of (attention, router, vocabulary) and of experts. MXFP4 packs 32
# weights of 4 bits with one scale byte; what it does not cover stays in bf16.
WEIGHT_BYTES: dict[Precision, tuple[float, float]] = {
    "mxfp4": (2, 4.25 / 8),
    "bf16": (2, 2),
    "fp32": (4, 4),
}
KV_BYTES = {"fp8": 1, "bf16": 2, "fp16": 2, "fp32": 4}
CPU_WORKSPACE_BYTES = 1 * GB  # Python, torch and activations
COMMUNICATION_BYTES = GB // 2  # NCCL's buffers on each of several GPUs
SAMPLER_BYTES = 16  # of a sequence and vocabulary entry: logits in bf16 and fp32, sorted, summed
# On a CPU the native engine keeps smaller matrices of float32 twice, by their number of values, and
# few experts in two orders. A test compares this with engines/native/backends/cpu/memory.py.
COPIED_BELOW = 4_194_304
CONTEXT_STEP = 1024  # a shortened context is a multiple of this many tokens


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What one device must hold."""

    weights_bytes: int
    workspace_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_sequence: int
    host_bytes: int = 0  # of the machine's memory, where a GPU has a part of the layers only
    draft_bytes: int = 0  # of the weights: those of the head that drafts

    @property
    def fixed_bytes(self) -> int:
        """Bytes that a device holds whatever the context."""
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
    if profile.gpu_layers is not None:
        return _divided(profile, profile.gpu_layers)
    return _whole(profile)


def _divided(profile: Profile, gpu_layers: int) -> MemoryNeed:
    """Divide the need between a GPU and the machine.

    The GPU has the output, which llama.cpp counts as a layer, and the layers before it; the
    machine's memory has the others and the embedding.
    """
    shape = profile.model.shape
    whole, share = _whole(profile), (gpu_layers - 1) / shape.num_hidden_layers
    dense = engine_of(profile.engine).dense_bytes or WEIGHT_BYTES[profile.precision][0]
    vocabulary = int(2 * vocabulary_parameters(shape) * dense)
    weights = int((whole.weights_bytes - vocabulary) * share) + vocabulary // 2
    kv_bytes = int(whole.kv_bytes_per_token * share)
    others = whole.kv_bytes_per_token - kv_bytes
    return MemoryNeed(
        weights_bytes=weights,
        workspace_bytes=whole.workspace_bytes,
        kv_bytes_per_token=kv_bytes,
        kv_bytes_per_sequence=int(whole.kv_bytes_per_sequence * share),
        host_bytes=whole.weights_bytes
        - weights
        + CPU_WORKSPACE_BYTES
        + others * profile.limits.max_model_len,
    )


def _whole(profile: Profile) -> MemoryNeed:
    shape, split = profile.model.shape, profile.parallelism
    attention_split = 1 if split.attention_dp or profile.gpu is None else split.tp
    layers = ceil(shape.num_hidden_layers / split.pp)
    full_layers = min(layers, ceil(shape.num_full_layers / split.pp))
    if engine_of(profile.engine).keeps_all:
        full_layers = layers
    heads = max(1, shape.num_key_value_heads // attention_split)
    kv_bytes = 2 * heads * shape.head_dim * KV_BYTES[profile.kv_dtype]  # of a layer, per token
    draft_weights, draft_kv_bytes = _draft_bytes(profile, attention_split)
    return MemoryNeed(
        weights_bytes=_weights_bytes(profile, layers, attention_split) + draft_weights,
        workspace_bytes=_workspace_bytes(profile),
        kv_bytes_per_token=full_layers * kv_bytes + draft_kv_bytes,
        kv_bytes_per_sequence=(layers - full_layers) * shape.sliding_window * kv_bytes,
        draft_bytes=draft_weights,
    )


def _draft_bytes(profile: Profile, attention_split: int) -> tuple[int, int]:
    """Weights of the head that drafts, and its K/V of a token; a head is not quantised."""
    if (head := profile.draft_shape) is None:
        return 0, 0
    weights = draft_parameters(profile.model.shape, head) * WEIGHT_BYTES[profile.precision][0]
    heads = max(1, head.num_key_value_heads // attention_split)
    kv_bytes = 2 * heads * head.head_dim * KV_BYTES[profile.kv_dtype]
    return int(weights / attention_split), kv_bytes


def _weights_bytes(profile: Profile, layers: int, attention_split: int) -> int:
    shape, tp = profile.model.shape, profile.parallelism.tp
    footprint = engine_of(profile.engine)
    dense, packed = WEIGHT_BYTES[profile.precision]
    if _is_native_on_cpu(profile):
        # The embedding stays in its file; the rows that score tokens are copied.
        in_file = (shape.num_vocabulary_matrices - 1) * vocabulary_parameters(shape)
        loaded = num_parameters(shape) - in_file
        return int((loaded + _copied_parameters(shape)) * dense)
    dense = footprint.dense_bytes or dense
    weights, biases = expert_parameters(shape)
    padded = weights * _padding(shape, footprint) if profile.gpu else weights
    experts = shape.num_local_experts * (padded * packed + biases * dense) / tp
    attention = attention_parameters(shape) * dense / attention_split
    layer = attention + router_parameters(shape) * dense + experts
    # With pipeline stages the first holds the embedding and the last the unembedding.
    num_matrices = shape.num_vocabulary_matrices if profile.parallelism.pp == 1 else 1
    vocabulary = num_matrices * vocabulary_parameters(shape) * dense / attention_split
    if profile.engine == "native" and attention_split > 1:  # one rank has the whole embedding
        vocabulary = (1 + 1 / attention_split) * vocabulary_parameters(shape) * dense
    return int(layers * layer + vocabulary + shape.hidden_size * dense)


def _is_native_on_cpu(profile: Profile) -> bool:
    return profile.engine == "native" and profile.gpu is None


def _copied_parameters(shape: ModelShape) -> int:
    """Count the weights that the native engine keeps twice on a CPU: small matrices, few
    experts."""
    query, key = (
        shape.num_attention_heads * shape.head_dim,
        shape.num_key_value_heads * shape.head_dim,
    )
    num, weights = shape.num_local_experts, expert_parameters(shape)[0]
    gate_up, down = 2 * weights // 3, weights // 3
    together = _again(num * gate_up) + _again(num * down)
    apart = num * (_again(gate_up) + _again(down))
    are_few = num <= 2 * shape.num_experts_per_tok and num * gate_up <= COPIED_BELOW
    experts = apart + (together + num * weights) * are_few
    attention = _again(shape.hidden_size * (query + 2 * key)) + _again(query * shape.hidden_size)
    head = _again(vocabulary_parameters(shape))
    return shape.num_hidden_layers * (attention + experts) + head


def _again(size: int) -> int:
    return size if size < COPIED_BELOW else 0


def _in_the_making(profile: Profile) -> int:
    """A layer's experts while they are loaded: as read, and their first matrix in order."""
    shape = profile.model.shape
    weights = shape.num_local_experts * expert_parameters(shape)[0]
    return int(weights * 5 / 3 * WEIGHT_BYTES[profile.precision][0])


def _padding(shape: ModelShape, footprint: KnownEngine) -> float:
    """Factor by which padding enlarges the experts."""
    multiple = footprint.hidden_multiple
    return ceil(shape.hidden_size / multiple) * multiple / shape.hidden_size


def _workspace_bytes(profile: Profile) -> int:
    if profile.gpu is None:
        ranks = profile.parallelism.tp * CPU_WORKSPACE_BYTES
        return ranks + _is_native_on_cpu(profile) * _in_the_making(profile)
    footprint, limits = engine_of(profile.engine), profile.limits
    is_joined = profile.num_devices > 1 and profile.engine != "native"  # its stages need no NCCL
    communication = COMMUNICATION_BYTES if is_joined else 0
    if footprint.is_fixed:
        return footprint.base_bytes + communication
    activations = limits.max_num_batched_tokens * _activation_bytes(profile)
    sampler = limits.max_num_seqs * profile.model.shape.vocab_size * SAMPLER_BYTES
    return footprint.base_bytes + communication + activations + sampler


def _activation_bytes(profile: Profile) -> int:
    """Bytes in bf16 of one token in one layer: residual, attention, the experts chosen for it."""
    shape, tp = profile.model.shape, profile.parallelism.tp
    heads = 2 * shape.num_attention_heads + 2 * shape.num_key_value_heads
    expert = 3 * shape.intermediate_size // tp + shape.hidden_size
    numbers = 6 * shape.hidden_size + heads * shape.head_dim // tp
    if (head := profile.draft_shape) is not None:  # what it looks at, and what K/V are made of
        numbers += (DRAFT_LAYERS + 3) * shape.hidden_size
        numbers += 2 * head.num_key_value_heads * head.head_dim // tp
    return 2 * (numbers + shape.num_experts_per_tok * expert)
