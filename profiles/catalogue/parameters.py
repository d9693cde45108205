"""How many weights a model has, and the parts of it."""

from __future__ import annotations

from profiles.catalogue.models import DraftShape, ModelShape

DRAFT_LAYERS = 3  # whose outputs an EAGLE3 head takes


def num_parameters(shape: ModelShape) -> int:
    """Count all weights of the model; ranks models by size."""
    layer = attention_parameters(shape) + router_parameters(shape)
    layer += shape.num_local_experts * sum(expert_parameters(shape))
    vocabulary = shape.num_vocabulary_matrices * vocabulary_parameters(shape)
    return shape.num_hidden_layers * layer + vocabulary + shape.hidden_size


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
    return (shape.hidden_size + 1) * shape.num_local_experts


def expert_parameters(shape: ModelShape) -> tuple[int, int]:
    """Count one expert's weights, which MXFP4 packs, and its biases, which stay bf16."""
    weights = 3 * shape.hidden_size * shape.intermediate_size
    return weights, 2 * shape.intermediate_size + shape.hidden_size


def vocabulary_parameters(shape: ModelShape) -> int:
    """Count the embedding; the unembedding has as many, unless it is the same matrix."""
    return shape.vocab_size * shape.hidden_size


def draft_parameters(shape: ModelShape, head: DraftShape) -> int:
    """Count the weights of an EAGLE3 head in its published format; the embedding is the model's."""
    hidden = shape.hidden_size
    query, key = (
        heads * head.head_dim for heads in (head.num_attention_heads, head.num_key_value_heads)
    )
    fuse = DRAFT_LAYERS * hidden * hidden
    attention = 2 * hidden * (query + 2 * key) + query * hidden
    norms = 4 * hidden
    return fuse + attention + hidden * (3 * head.intermediate_size + head.draft_vocab_size) + norms
