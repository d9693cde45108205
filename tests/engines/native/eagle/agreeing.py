"""A target whose next token follows from its last one, and a head that knows it.

Token t has a row of signs E[t]. The target's layers add nothing to it, and its next token is most
likely (7 t + 1) % 60. The head attends to its own token alone and so finds the same row:

    v = E[t] - hidden_norm(z before)         so that z = E[t], also where z was another token's
    guess = the token after t
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.engines.native.eagle.reference import Tensors, head_config, head_tensors, write_head

VOCAB, HIDDEN = 60, 32
SHARPNESS = 0.14  # of the target's choice: the likeliest token is drawn about every second time


def after(token: int) -> int:
    return (7 * token + 1) % VOCAB


def signs() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 2, (VOCAB, HIDDEN), generator=generator).float() * 2 - 1


def make_certain(tensors: Tensors) -> None:
    """Change a random target's tensors."""
    for name, tensor in tensors.items():
        if "o_proj" in name or "down_proj" in name:
            tensor.zero_()
        elif "norm" in name:
            tensor.fill_(1.0)
    tensors["model.embed_tokens.weight"] = signs()
    tensors["lm_head.weight"] = SHARPNESS * _rows_after()


def probabilities() -> Tensor:
    """(token, next token) of that target at temperature 1, in float64."""
    rows = signs().double()
    rms = (rows.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return (rows / rms @ (SHARPNESS * _rows_after().double()).T).softmax(-1)


def write_agreeing_head(folder: Path, target: dict[str, Any]) -> Path:
    config = head_config(
        target, num_attention_heads=1, num_key_value_heads=1, head_dim=HIDDEN,
        draft_vocab_size=None,
    )  # fmt: skip
    tensors = head_tensors({**config, "draft_vocab_size": VOCAB})
    for name in ("d2t", "t2d"):  # the head's tokens are the target's
        del tensors[name]
    for name, tensor in tensors.items():
        tensor.fill_(1.0 if "norm" in name else 0.0)
    eye, none = torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)
    tensors["midlayer.self_attn.q_proj.weight"] = torch.cat((4 * eye, none), 1)
    tensors["midlayer.self_attn.k_proj.weight"] = torch.cat((4 * eye, none), 1)
    tensors["midlayer.self_attn.v_proj.weight"] = torch.cat((eye, -eye), 1)
    tensors["midlayer.self_attn.o_proj.weight"] = eye
    tensors["lm_head.weight"] = _rows_after()
    config = {name: value for name, value in config.items() if value is not None}
    return write_head(folder, config, {n: t.contiguous() for n, t in tensors.items()})


def _rows_after() -> Tensor:
    rows = torch.empty(VOCAB, HIDDEN)
    rows[torch.tensor([after(token) for token in range(VOCAB)])] = signs()
    return rows
