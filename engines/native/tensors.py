"""Every tensor of a published gpt-oss checkpoint: its name and its shape."""

from __future__ import annotations

from typing import Final

from engines.native.config import ModelConfig
from engines.native.weights import TensorSpec

EMBEDDING: Final = "model.embed_tokens.weight"
NORM: Final = "model.norm.weight"
HEAD: Final = "lm_head.weight"


def tensor_specs(config: ModelConfig) -> dict[str, TensorSpec]:
    """Every tensor of a published checkpoint of this shape, by its published name."""
    specs = {
        EMBEDDING: TensorSpec((config.vocab_size, config.hidden_size)),
        NORM: TensorSpec((config.hidden_size,)),
    }
    if not config.tie_word_embeddings:
        specs[HEAD] = TensorSpec((config.vocab_size, config.hidden_size))
    layer = _layer_specs(config)
    for index in range(config.num_hidden_layers):
        specs |= {f"model.layers.{index}.{name}": spec for name, spec in layer.items()}
    return specs


def _layer_specs(config: ModelConfig) -> dict[str, TensorSpec]:
    hidden, inner, experts = config.hidden_size, config.intermediate_size, config.num_local_experts
    specs = {
        "input_layernorm.weight": TensorSpec((hidden,)),
        "post_attention_layernorm.weight": TensorSpec((hidden,)),
        "self_attn.sinks": TensorSpec((config.num_attention_heads,)),
        "mlp.router.weight": TensorSpec((experts, hidden)),
        "mlp.router.bias": TensorSpec((experts,)),
        "mlp.experts.gate_up_proj": TensorSpec((experts, hidden, 2 * inner), is_packable=True),
        "mlp.experts.gate_up_proj_bias": TensorSpec((experts, 2 * inner)),
        "mlp.experts.down_proj": TensorSpec((experts, inner, hidden), is_packable=True),
        "mlp.experts.down_proj_bias": TensorSpec((experts, hidden)),
    }
    for name, (num_out, num_in) in _projections(config).items():
        specs[f"self_attn.{name}.weight"] = TensorSpec((num_out, num_in))
        if config.attention_bias:
            specs[f"self_attn.{name}.bias"] = TensorSpec((num_out,))
    return specs


def _projections(config: ModelConfig) -> dict[str, tuple[int, int]]:
    return {
        "q_proj": (config.q_size, config.hidden_size),
        "k_proj": (config.kv_size, config.hidden_size),
        "v_proj": (config.kv_size, config.hidden_size),
        "o_proj": (config.hidden_size, config.q_size),
    }
