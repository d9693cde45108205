"""EAGLE3 heads for tests: written as published, and computed in float64 as published code does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Tensors = dict[str, Tensor]


def head_config(target: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The config.json of a small head for a target's config."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": target["hidden_size"],
        "target_hidden_size": target["hidden_size"],
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": target["vocab_size"],
        "draft_vocab_size": target["vocab_size"] // 2,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [0, 1, target["num_hidden_layers"] - 1],
            "use_aux_hidden_state": True,
        },
        **changes,
    }


def head_tensors(config: dict[str, Any], seed: int = 5) -> Tensors:
    """Random ones under their published names; the draft's tokens are every second one."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    hidden, inner, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    num_drafts, num_tokens = config["draft_vocab_size"], config["vocab_size"]
    eagle = config["eagle_config"] or {}
    num_layers = len(eagle.get("eagle_aux_hidden_state_layer_ids", range(3)))
    ids = torch.arange(num_drafts) * (num_tokens // num_drafts)
    is_draft = torch.zeros(num_tokens, dtype=torch.bool)
    is_draft[ids] = True
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    return {
        "fc.weight": 0.03 * random(hidden, num_layers * config["target_hidden_size"]),
        "norm.weight": 1 + random(hidden),
        "lm_head.weight": random(num_drafts, hidden),
        "d2t": ids - torch.arange(num_drafts),
        "t2d": is_draft,
        **{f"midlayer.{name}.weight": 1 + random(hidden) for name in norms},
        "midlayer.self_attn.q_proj.weight": random(q, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": random(kv, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": random(kv, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": 4 * random(hidden, q),
        "midlayer.mlp.gate_proj.weight": random(inner, hidden),
        "midlayer.mlp.up_proj.weight": random(inner, hidden),
        "midlayer.mlp.down_proj.weight": 4 * random(hidden, inner),
    }


def write_head(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


class ReferenceHead:
    """The published forward of `LlamaForCausalLMEagle3`, in float64 and without a cache.

    Its positions count from the first state: row i is the token i + 1 beside the states of i.
    """

    def __init__(self, config: dict[str, Any], tensors: Tensors, embedding: Tensor) -> None:
        self._config = config
        self._w = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
        self._embedding = self._w.get("embed_tokens.weight", embedding.double())

    def guesses(self, token_ids: list[int], states: Tensor, num: int) -> list[int]:
        """The `num` tokens after `token_ids`; states (len(token_ids) - 1, 3 * hidden) of all but
        the last."""
        hidden = states.double() @ self._w["fc.weight"].T
        tokens = token_ids[1:]
        guessed: list[int] = []
        while True:
            z = self._layer(torch.tensor(tokens), hidden)
            last = self._norm(z[-1:], "norm")
            best = int((last @ self._w["lm_head.weight"].T).argmax())
            guessed.append(best + int(self._w["d2t"][best]))
            if len(guessed) == num:
                return guessed
            tokens, hidden = [*tokens, guessed[-1]], torch.cat((hidden, z[-1:]))

    def _layer(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        config, num = self._config, len(tokens)
        embedded = self._norm(self._embedding[tokens], "midlayer.input_layernorm")
        x = torch.cat((embedded, self._norm(hidden, "midlayer.hidden_norm")), 1)
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        q, k, v = (self._project(x, name).view(num, -1, config["head_dim"]) for name in "qkv")
        q, k = self._rotate(q), self._rotate(k)
        k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * config["head_dim"] ** -0.5
        is_later = torch.ones(num, num, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(is_later, float("-inf")).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
        y = hidden + attended @ self._w["midlayer.self_attn.o_proj.weight"].T
        normed = self._norm(y, "midlayer.post_attention_layernorm")
        gate, up = (normed @ self._w[f"midlayer.mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        return (
            y + (torch.nn.functional.silu(gate) * up) @ self._w["midlayer.mlp.down_proj.weight"].T
        )

    def _project(self, x: Tensor, name: str) -> Tensor:
        weight: Tensor = self._w[f"midlayer.self_attn.{name}_proj.weight"]
        return x @ weight.T

    def _rotate(self, x: Tensor) -> Tensor:
        d = self._config["head_dim"]
        frequencies = self._config["rope_theta"] ** (-torch.arange(0, d, 2).double() / d)
        angles = torch.outer(torch.arange(len(x)).double(), frequencies).unsqueeze(1)
        low, high = x.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        eps: float = self._config["rms_norm_eps"]
        scale = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        return x * scale * self._w[f"{name}.weight"]
