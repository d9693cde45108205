"""A checkpoint of gpt-oss as a GGUF file, as llama.cpp's convert_hf_to_gguf.py would write it.

Only for tests: no tokenizer is in it, for engines take token ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from engines.native.config import ModelConfig
from engines.native.weights import CheckpointTensors, tensor_specs

PLAIN = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.sinks": "attn_sinks.weight",
    "mlp.router": "ffn_gate_inp",
}


def write_gguf(model_dir: Path, path: Path, *, mxfp4: bool = False) -> Path:
    """Write the checkpoint of a folder; experts as MXFP4 or, like all else, as float32."""
    config = ModelConfig.from_dir(model_dir)
    writer = gguf.GGUFWriter(path, "gpt-oss")
    _write_shape(writer, config)
    kind = gguf.LlamaFileType.MOSTLY_MXFP4_MOE if mxfp4 else gguf.LlamaFileType.ALL_F32
    writer.add_file_type(kind)
    for name, values in _tensors(model_dir, config):
        if mxfp4 and name.endswith("_exps.weight"):
            kind = gguf.GGMLQuantizationType.MXFP4
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_shape(writer: Any, config: ModelConfig) -> None:
    rope = config.rope
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_sliding_window(config.sliding_window)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_rope_freq_base(rope.theta)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope.factor)
    writer.add_rope_scaling_orig_ctx_len(rope.original_max_position_embeddings)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")


def _tensors(model_dir: Path, config: ModelConfig) -> Iterator[tuple[str, NDArray[np.float32]]]:
    checkpoint = CheckpointTensors(model_dir, tensor_specs(config))
    for name in tensor_specs(config):
        values = checkpoint.tensor(name, torch.float32)
        block, _, rest = name.removeprefix("model.layers.").partition(".")
        prefix = f"blk.{block}." if block.isdigit() else ""
        for new_name, part in _renamed(rest if prefix else name, values):
            yield prefix + new_name, np.ascontiguousarray(part.numpy())


def _renamed(name: str, values: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if name.startswith("mlp.experts."):
        yield from _experts(name.removeprefix("mlp.experts."), values)
        return
    stem, _, kind = name.rpartition(".")
    yield (PLAIN[name], values) if name in PLAIN else (f"{PLAIN[stem]}.{kind}", values)


def _experts(name: str, values: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Gate and up are interleaved in a checkpoint, and weights lie (experts, in, out)."""
    kind = "bias" if name.endswith("_bias") else "weight"
    if kind == "weight":
        values = values.transpose(1, 2)
    if name.startswith("down_proj"):
        yield f"ffn_down_exps.{kind}", values
    else:
        yield f"ffn_gate_exps.{kind}", values[:, ::2]
        yield f"ffn_up_exps.{kind}", values[:, 1::2]
