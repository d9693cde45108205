"""The published shapes of gpt-oss, for which kernels are compiled without a checkpoint."""

from __future__ import annotations

from engines.native.config import LayerType, ModelConfig, RopeConfig

_SIZES = {"20b": (24, 32), "120b": (36, 128)}  # layers, experts


def gpt_oss(model: str, num_layers: int | None = None) -> ModelConfig:
    """The published shape of gpt-oss-20b or -120b, of fewer layers if wanted."""
    layers, experts = _SIZES[model]
    layers = num_layers or layers
    kinds: list[LayerType] = ["sliding_attention", "full_attention"]
    return ModelConfig(
        hidden_size=2880,
        num_hidden_layers=layers,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        intermediate_size=2880,
        num_local_experts=experts,
        num_experts_per_tok=4,
        sliding_window=128,
        layer_types=tuple(kinds[i % 2] for i in range(layers)),
        vocab_size=201088,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        swiglu_limit=7.0,
        swiglu_alpha=1.702,
        attention_bias=True,
        tie_word_embeddings=False,
        rope=RopeConfig(150000.0, 32.0, 4096, 32.0, 1.0, False, None),
    )
