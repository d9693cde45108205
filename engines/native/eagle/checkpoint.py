"""The tensors of a published EAGLE3 head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from engines.errors import EngineStartError
from engines.native.config import ModelConfig
from engines.native.eagle.config import EagleConfig
from engines.native.weights import Checkpoint, TensorSpec, stored_shapes

D2T: Final = "d2t"
T2D: Final = "t2d"  # says the same as d2t from the target's side; not read
EMBEDDING: Final = "embed_tokens.weight"
HEAD: Final = "lm_head.weight"
_LAYERS: Final = ("midlayer.", "layers.0.")


@dataclass(frozen=True, slots=True)
class EagleWeights:
    """A head's tensors; keys after queries and values last in qkv, `up` after `gate`.

    target_ids (draft_vocab_size): the token of the target that each row of `head` scores; None
    where they are numbered alike.
    """

    embedding: Tensor
    fuse: Tensor  # (hidden, layers * target_hidden)
    embedding_norm: Tensor
    hidden_norm: Tensor
    qkv: Tensor  # (q + 2 * kv, 2 * hidden)
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    norm: Tensor
    head: Tensor
    target_ids: Tensor | None


def load_eagle(
    folder: Path,
    config: EagleConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    target_embedding: Tensor,
    target_head: Callable[[], Tensor],
) -> EagleWeights:
    """Read a head; what it leaves out, the embedding or the rows of logits, is the target's.

    Raises EngineStartError naming the file, the tensor and what is wrong with it.
    """
    shapes = stored_shapes(folder)
    prefix = next((p for p in _LAYERS if any(name.startswith(p) for name in shapes)), _LAYERS[0])
    checkpoint = Checkpoint(folder, _specs(config, set(shapes), prefix, folder))

    def load(name: str) -> Tensor:
        return checkpoint.tensor(name, dtype).to(device).contiguous()

    def joined(part: str, names: tuple[str, ...]) -> Tensor:
        return torch.cat([load(f"{prefix}{part}.{name}_proj.weight") for name in names])

    return EagleWeights(
        embedding=load(EMBEDDING) if EMBEDDING in shapes else target_embedding,
        fuse=load("fc.weight"),
        embedding_norm=load(f"{prefix}input_layernorm.weight"),
        hidden_norm=load(f"{prefix}hidden_norm.weight"),
        qkv=joined("self_attn", ("q", "k", "v")),
        out=load(f"{prefix}self_attn.o_proj.weight"),
        mlp_norm=load(f"{prefix}post_attention_layernorm.weight"),
        gate_up=joined("mlp", ("gate", "up")),
        down=load(f"{prefix}mlp.down_proj.weight"),
        norm=load("norm.weight"),
        head=load(HEAD) if HEAD in shapes else target_head().to(dtype),
        target_ids=_target_ids(checkpoint, config, device, folder) if D2T in shapes else None,
    )


def copied_values(folder: Path, target: ModelConfig) -> int:
    """How many numbers a head is made of; the target's embedding is not copied, its rows are."""
    shapes = stored_shapes(folder)
    rows = 0 if HEAD in shapes else target.vocab_size * target.hidden_size
    return sum(prod(shape) for shape in shapes.values()) + rows


def _specs(
    config: EagleConfig, present: set[str], prefix: str, folder: Path
) -> dict[str, TensorSpec]:
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(config.layers) * config.target_hidden_size),
        "norm.weight": (hidden,),
    }
    of_layer = {
        "input_layernorm": (hidden,),
        "hidden_norm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (config.q_size, 2 * hidden),
        "self_attn.k_proj": (config.kv_size, 2 * hidden),
        "self_attn.v_proj": (config.kv_size, 2 * hidden),
        "self_attn.o_proj": (hidden, config.q_size),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes |= {f"{prefix}{name}.weight": shape for name, shape in of_layer.items()}
    is_same = hidden == config.target_hidden_size
    if EMBEDDING in present or not is_same:
        shapes[EMBEDDING] = (config.vocab_size, hidden)
    if HEAD in present or not is_same or config.draft_vocab_size != config.vocab_size:
        shapes[HEAD] = (config.draft_vocab_size, hidden)
    specs = {name: TensorSpec(shape) for name, shape in shapes.items()}
    if D2T in present:
        specs[D2T] = TensorSpec((config.draft_vocab_size,), dtypes=frozenset({"I64", "I32"}))
    elif config.draft_vocab_size != config.vocab_size:
        raise EngineStartError(
            f"{folder}: tensor {D2T} is missing, and draft_vocab_size is"
            f" {config.draft_vocab_size} of {config.vocab_size} tokens"
        )
    if T2D in present:
        specs[T2D] = TensorSpec((config.vocab_size,), dtypes=frozenset({"BOOL", "I64", "I32"}))
    return specs


def _target_ids(
    checkpoint: Checkpoint, config: EagleConfig, device: torch.device, folder: Path
) -> Tensor:
    """`d2t` holds by how much the target's number of a token is above the head's."""
    offsets = checkpoint.stored(D2T).long()
    ids = offsets + torch.arange(config.draft_vocab_size)
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
        raise EngineStartError(
            f"{folder}: tensor {D2T} leads to token {int(ids.max())}"
            f" of {config.vocab_size}; the head is of another vocabulary"
        )
    return ids.to(device)
