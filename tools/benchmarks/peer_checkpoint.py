"""A checkpoint of gpt-oss as Hugging Face has it, so that vLLM's own server loads it offline.

    python -m tools.benchmarks.peer_checkpoint FOLDER WHERE

FOLDER is one of tools.benchmarks.published; WHERE gets links to its shards, config.json with what
other loaders ask for, the published vocabulary's file (TIKTOKEN_ENCODINGS_BASE=WHERE) and, where
transformers and tiktoken are installed, a tokenizer.json made of it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from service.harmony.vocabulary import write_vocabulary

_DENSE: Final = ("self_attn", "mlp.router")
_SPECIAL: Final = {
    199998: "<|startoftext|>", 199999: "<|endoftext|>", 200002: "<|return|>",
    200003: "<|constrain|>", 200005: "<|channel|>", 200006: "<|start|>", 200007: "<|end|>",
    200008: "<|message|>", 200012: "<|call|>", 200018: "<|endofprompt|>",
}  # fmt: skip
_PATTERN: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_config(folder: Path, where: Path) -> None:
    """What is in config.json, and what vLLM and transformers want to find there."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    dense = [f"model.layers.*.{name}" for name in _DENSE]
    config |= {
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [*dense, "model.embed_tokens", "lm_head"],
        },
        "experts_per_token": config["num_experts_per_tok"],
        "initial_context_length": 4096,
        "hidden_act": "silu",
        "eos_token_id": 200002,
        "pad_token_id": 199999,
        "torch_dtype": "bfloat16",
    }
    (where / "config.json").write_text(json.dumps(config, indent=1))
    ends = {"eos_token_id": [200002, 199999, 200012], "pad_token_id": 199999}
    (where / "generation_config.json").write_text(json.dumps(ends))


def write_tokenizer(where: Path) -> None:
    """tokenizer.json of the vocabulary's file: 28 MB."""
    from transformers.convert_slow_tokenizer import TikTokenConverter

    special = [_SPECIAL.get(i, f"<|reserved_{i}|>") for i in range(199998, 200019)]
    converter = TikTokenConverter(
        vocab_file=str(write_vocabulary(where)), pattern=_PATTERN, extra_special_tokens=special
    )
    converter.converted().save(str(where / "tokenizer.json"))
    names = {"eos_token": "<|return|>", "pad_token": "<|endoftext|>", "bos_token": _SPECIAL[199998]}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 131_072, **names}
    (where / "tokenizer_config.json").write_text(json.dumps(settings))


def prepare(folder: Path, where: Path) -> None:
    where.mkdir(parents=True, exist_ok=True)
    for path in [*folder.glob("*.safetensors"), folder / "model.safetensors.index.json"]:
        (where / path.name).unlink(missing_ok=True)
        (where / path.name).symlink_to(path.resolve())
    write_config(folder, where)
    write_tokenizer(where)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("where", type=Path)
    given = parser.parse_args()
    prepare(given.folder, given.where)
