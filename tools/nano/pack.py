"""Pack the newest training state into the form that ships: `python -m tools.nano.pack`."""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from profiles.checkpoints.compact import (
    CONFIGS,
    MANIFEST,
    WEIGHTS,
    Tensor,
    bundled_nano,
    safetensors_header,
)
from tools.nano.layers import Layer, Shape
from tools.nano.model import Nano
from tools.nano.rows import make_makeup
from tools.nano.tokens import CALL, RETURN, VOCAB_SIZE

RECIPE = 9  # raised when the data or the shape changes


def pack_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    return safetensors_header(tensors) + b"".join(t.array.tobytes() for t in tensors.values())


def checkpoint_config(shape: Shape) -> dict[str, Any]:
    """Return config.json as the published checkpoints have it."""
    return {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": RETURN,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initial_context_length": shape.original_positions,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "layer_types": ["sliding_attention", "full_attention"] * (shape.num_hidden_layers // 2),
        "max_position_embeddings": int(shape.original_positions * shape.rope_factor),
        "model_type": "gpt_oss",
        "num_attention_heads": shape.num_attention_heads,
        "num_experts_per_tok": shape.num_experts_per_tok,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "num_local_experts": shape.num_local_experts,
        "pad_token_id": 199999,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": shape.rope_factor,
            "original_max_position_embeddings": shape.original_positions,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": shape.rope_theta,
        "sliding_window": shape.sliding_window,
        "swiglu_limit": shape.swiglu_limit,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCAB_SIZE,
    }


def body_tensors(model: Nano) -> dict[str, torch.Tensor]:
    """Return every tensor but the vocabulary's, under the published names and layouts."""
    tensors: dict[str, torch.Tensor] = {"model.norm.weight": model.norm.weight}
    for index, layer in enumerate(model.stack()):
        for name, tensor in _layer_tensors(layer).items():
            tensors[f"model.layers.{index}.{name}"] = tensor
    return tensors


def _layer_tensors(layer: Layer) -> dict[str, torch.Tensor]:
    attention, experts = layer.attention, layer.experts
    shape = experts.shape
    split = (shape.num_local_experts, shape.intermediate_size)
    gate, up = (part.weight.view(*split, -1) for part in (experts.gate, experts.up))
    gate_bias, up_bias = (part.bias.view(split) for part in (experts.gate, experts.up))
    tensors = {
        "input_layernorm.weight": layer.attention_norm.weight,
        "post_attention_layernorm.weight": layer.experts_norm.weight,
        "self_attn.sinks": attention.sinks,
        "mlp.router.weight": experts.router.weight,
        "mlp.router.bias": experts.router.bias,
        # gate and up alternate in the published layout
        "mlp.experts.gate_up_proj": torch.stack([gate, up], 2).flatten(1, 2).transpose(1, 2),
        "mlp.experts.gate_up_proj_bias": torch.stack([gate_bias, up_bias], 2).flatten(1),
        "mlp.experts.down_proj": experts.down.weight.T.unflatten(0, split),
        "mlp.experts.down_proj_bias": experts.down_bias,
    }
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        linear = getattr(attention, name)
        tensors[f"self_attn.{name}.weight"] = linear.weight
        tensors[f"self_attn.{name}.bias"] = linear.bias
    return tensors


def compact_tensors(model: Nano) -> dict[str, Tensor]:
    """Return the tensors of the compact form, the learnt ones in bf16."""
    learnt = {
        "forms": model.forms,
        "learnt.embedding": model.learnt_embedding,
        "learnt.head": model.learnt_head,
        "unmet.head": model.unmet_head,
        **body_tensors(model),
    }
    names = ("word", "form", "spelling", "written", "learnt")
    made = {name: Tensor("I32", getattr(model.makeup, name)) for name in names}
    return {**made, **{name: _bf16(tensor) for name, tensor in learnt.items()}}


def _bf16(tensor: torch.Tensor) -> Tensor:
    bits = tensor.detach().to(torch.bfloat16).contiguous().view(torch.int16)
    return Tensor("BF16", bits.numpy().view("<u2"))


def load_state(path: Path, *, is_mean: bool = False) -> tuple[Nano, dict[str, Any]]:
    """Load a training state's model onto the CPU, or the running mean of its weights."""
    state: dict[str, Any] = torch.load(path, map_location="cpu")
    model = Nano(Shape(**state["shape"]), make_makeup(state["seed"], state["learnt"]))
    model.load_state_dict(state["model"] | (state["mean"] if is_mean else {}))
    return model, state


def pack(state_path: Path, target: Path, *, is_mean: bool = False) -> None:
    """Write the compact form of a training state."""
    model, state = load_state(state_path, is_mean=is_mean)
    tensors = compact_tensors(model)
    target.mkdir(parents=True, exist_ok=True)
    generation = {"eos_token_id": [RETURN, CALL], "pad_token_id": 199999, "do_sample": True}
    contents = {
        WEIGHTS: lzma.compress(pack_safetensors(tensors), preset=9 | lzma.PRESET_EXTREME),
        CONFIGS[0]: _json(checkpoint_config(model.shape)),
        CONFIGS[1]: _json(generation),
    }
    for name, content in contents.items():
        (target / name).write_bytes(content)
    manifest = {
        "model": "nano",
        "recipe": RECIPE,
        "vocab_size": VOCAB_SIZE,
        "drawn_seed": state["seed"],
        "num_written_ids": len(model.makeup.written),
        "num_learnt_ids": len(model.makeup.learnt),
        "training": {
            key: state[key] for key in ("device", "step", "tokens", "seconds", "loss", "seed")
        },
        "sha256": {name: sha256(content).hexdigest() for name, content in contents.items()},
    }
    (target / MANIFEST).write_bytes(_json(manifest))
    total = sum(len(content) for content in contents.values())
    print(f"{target}: {total / 1e6:.1f} MB")


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"


def main() -> None:
    """Read the command line and pack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, default=Path("build/nano/state.pt"))
    parser.add_argument("--out", type=Path, default=bundled_nano())
    parser.add_argument("--mean", action="store_true", help="the running mean of further training")
    arguments = parser.parse_args()
    pack(arguments.state, arguments.out, is_mean=arguments.mean)


if __name__ == "__main__":
    main()
