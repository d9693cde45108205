"""A random gpt-oss checkpoint in the published format, for shapes nobody trained."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

VOCAB_SIZE = 201_088


def config(*, hidden: int, num_layers: int, num_experts: int) -> dict[str, object]:
    """A config.json of the published format; heads of 64 with 8 queries to a key, as gpt-oss."""
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": 200002,
        "pad_token_id": 199999,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": hidden,
        "layer_types": ["sliding_attention", "full_attention"] * (num_layers // 2),
        "max_position_embeddings": 4096,
        "num_attention_heads": 8,
        "num_experts_per_tok": 4,
        "num_hidden_layers": num_layers,
        "num_key_value_heads": 1,
        "num_local_experts": num_experts,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
        "rope_theta": 150000,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "vocab_size": VOCAB_SIZE,
    }


def write_random(folder: Path, *, hidden: int, num_layers: int, num_experts: int) -> Path:
    """Write a seeded random checkpoint in bf16 and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    values = config(hidden=hidden, num_layers=num_layers, num_experts=num_experts)
    (folder / "config.json").write_text(json.dumps(values))
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * 0.05).bfloat16()

    tensors = {
        "model.embed_tokens.weight": normal(VOCAB_SIZE, hidden),
        "model.norm.weight": 1 + normal(hidden),
        "lm_head.weight": normal(VOCAB_SIZE, hidden),
    }
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}."
        shapes = {
            "self_attn.q_proj.weight": (512, hidden),
            "self_attn.q_proj.bias": (512,),
            "self_attn.k_proj.weight": (64, hidden),
            "self_attn.k_proj.bias": (64,),
            "self_attn.v_proj.weight": (64, hidden),
            "self_attn.v_proj.bias": (64,),
            "self_attn.o_proj.weight": (hidden, 512),
            "self_attn.o_proj.bias": (hidden,),
            "self_attn.sinks": (8,),
            "mlp.router.weight": (num_experts, hidden),
            "mlp.router.bias": (num_experts,),
            "mlp.experts.gate_up_proj": (num_experts, hidden, 2 * hidden),
            "mlp.experts.gate_up_proj_bias": (num_experts, 2 * hidden),
            "mlp.experts.down_proj": (num_experts, hidden, hidden),
            "mlp.experts.down_proj_bias": (num_experts, hidden),
        }
        tensors |= {prefix + name: normal(*shape) for name, shape in shapes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{norm}.weight"] = 1 + normal(hidden)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
