"""Whether a LoRA adapter is of the model: vLLM takes others too, and its answers are nonsense."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from engines.native.shard_header import read_header

_ATTENTION: Final = re.compile(r"layers\.(\d+)\.self_attn\.([qkvo])_proj\.lora_([AB])\.weight$")


def misfit(folder: Path, config: Mapping[str, Any]) -> str | None:
    """A matrix of attention that is not of the model with this config.json; None if all are.

    Raises OSError and ValueError for a file that cannot be read.
    """
    path = folder / "adapter_model.safetensors"
    tensors = read_header(path)[1]
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    queries = config["num_attention_heads"] * head_dim
    keys = config["num_key_value_heads"] * head_dim
    sides = {"q": (hidden, queries), "k": (hidden, keys), "v": (hidden, keys)}
    sides["o"] = queries, hidden
    for name, described in tensors.items():
        if (found := _ATTENTION.search(name)) is None:
            continue
        layer, matrix, side = found.groups()
        num_in, num_out = sides[matrix]
        shape, wanted = described["shape"], num_in if side == "A" else num_out
        if int(layer) >= config["num_hidden_layers"] or shape[side == "A"] != wanted:
            return (
                f"{path}: {name} has shape {shape}; this model has {config['num_hidden_layers']}"
                f" layers, with {num_in} inputs and {num_out} outputs there"
            )
    return None
