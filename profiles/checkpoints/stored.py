"""What a checkpoint's files hold, by the headers of its shards; config.json only says it.

A fine-tune has the shape of a published model and mostly other weights: merged ones are BF16, and
three times as large. So the headers decide on precision and memory, before a download too: they
are in the first bytes of each shard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from profiles.catalogue.models import Precision
from profiles.checkpoints.safetensors_header import SafetensorsHeader, TensorEntry
from profiles.errors import ModelStoreError

MXFP4: Final = "MXFP4"
_PLAIN: Final = ("F32", "F16", "BF16")
_EXPERTS: Final = re.compile(r"model\.layers\.\d+\.mlp\.experts\.(gate_up|down)_proj(_blocks)?")
_MXFP4_PARTS: Final = ("_proj_blocks", "_proj_scales")
_LAYER: Final = re.compile(r"model\.layers\.(\d+)\.")
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
# Tensors by which formats that nothing here reads are known, where config.json does not name them.
_MARKS: Final = (
    (re.compile(r"weight_scale_2$"), "NVFP4"),
    (re.compile(r"\.weight_packed$"), "compressed-tensors"),
    (re.compile(r"\.(qweight|qzeros|g_idx)$"), "GPTQ or AWQ"),
    (re.compile(r"\.(absmax|quant_map|quant_state\..*)$"), "bitsandbytes"),
)
_FP8: Final = re.compile(r"F8_E\dM\d.*")


class StoredTensors(msgspec.Struct, frozen=True):
    """What the shards hold; kept as JSON beside a list of files that are still to come."""

    experts: tuple[str, ...]  # the formats of the experts, in the format's names
    foreign: str  # a format that no engine here reads; empty if there is none
    num_bytes: int  # of all tensors
    num_layers: int
    vocabulary_rows: int | None  # of the embedding
    has_head: bool  # whether the rows that score tokens are others than the embedding's

    @property
    def precision(self) -> Precision:
        """What a GPU computes with: 32 bits are cut to 16, 16 stay 16."""
        return "mxfp4" if self.experts == (MXFP4,) else "bf16"


def stored_tensors(headers: Iterable[SafetensorsHeader]) -> StoredTensors:
    tensors: dict[str, TensorEntry] = {}
    for header in headers:
        tensors |= header.tensors
    layers = [int(match[1]) for name in tensors if (match := _LAYER.match(name))]
    embedding = tensors.get(_EMBEDDING)
    return StoredTensors(
        experts=tuple(sorted({kind for name in tensors if (kind := _kind(name, tensors[name]))})),
        foreign=next((kind for name in tensors if (kind := _foreign(name, tensors[name]))), ""),
        num_bytes=sum(entry.num_bytes for entry in tensors.values()),
        num_layers=max(layers, default=-1) + 1,
        vocabulary_rows=embedding.shape[0] if embedding and embedding.shape else None,
        has_head=_HEAD in tensors,
    )


def _kind(name: str, entry: TensorEntry) -> str:
    """The format of an expert's matrix; empty for any other tensor."""
    match = _EXPERTS.fullmatch(name)
    if match is None:
        return ""
    return MXFP4 if match[2] else entry.dtype


def _foreign(name: str, entry: TensorEntry) -> str:
    """The format that a tensor of a layer is a part of, if nothing here reads it."""
    if _LAYER.match(name) is None:
        return ""
    for mark, kind in _MARKS:
        if mark.search(name):
            return kind
    if entry.dtype in _PLAIN or (entry.dtype == "U8" and name.endswith(_MXFP4_PARTS)):
        return ""
    return "FP8" if _FP8.fullmatch(entry.dtype) else entry.dtype


def check_format(place: str, config: Mapping[str, Any], stored: StoredTensors | None) -> None:
    """Raise ModelStoreError, with the remedy, for weights that were quantized in another way."""
    if config.get("model_type") != "gpt_oss":  # refused, or a draft head: its engine reads it
        return
    foreign = _declared(config) or (stored.foreign if stored is not None else "")
    if foreign:
        raise ModelStoreError(
            f"{place}: the weights are quantized as {foreign}; this server reads BF16, F16, F32 "
            "and MXFP4: serve the checkpoint that it was made from (NIM_QUANTIZE=mxfp4 rounds 16 "
            "bits to MXFP4 while loading), or a GGUF file of it"
        )


def _declared(config: Mapping[str, Any]) -> str:
    """The format that config.json names, if it is none that is read."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return ""
    method = str(quantization.get("quant_method") or "an unnamed format")[:40]
    if method == "mxfp4":
        return ""
    detail = quantization.get("quant_algo") or quantization.get("format")
    return f"{str(detail)[:40]} ({method})" if detail else method


def check_agreement(place: str, config: Mapping[str, Any], stored: StoredTensors) -> None:
    """Raise ModelStoreError where config.json says other sizes than the shards have."""
    layers, vocabulary = config.get("num_hidden_layers"), config.get("vocab_size")
    if stored.num_layers and isinstance(layers, int) and layers != stored.num_layers:
        raise ModelStoreError(
            f"{place}: num_hidden_layers is {layers}, and the files have {stored.num_layers} "
            "layers; save the checkpoint again, with the config.json that belongs to it"
        )
    rows = stored.vocabulary_rows
    if rows is not None and isinstance(vocabulary, int) and vocabulary != rows:
        raise ModelStoreError(
            f"{place}: vocab_size is {vocabulary:,}, and {_EMBEDDING} has {rows:,} rows; set "
            f"vocab_size to {rows}, or save the checkpoint again"
        )
    if rows is not None and is_tied(config) == stored.has_head:
        has = "have" if stored.has_head else "lack"
        raise ModelStoreError(
            f"{place}: tie_word_embeddings is {str(is_tied(config)).lower()}, and the files {has} "
            f"{_HEAD}; set it to {str(not stored.has_head).lower()}, or save the checkpoint again"
        )


def is_tied(config: Mapping[str, Any]) -> bool:
    """Whether the embedding's rows score the tokens too."""
    return config.get("tie_word_embeddings") is True
