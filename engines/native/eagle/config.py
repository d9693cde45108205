"""The shape of an EAGLE3 head, from the config.json of its folder.

The format is the one of published heads (`LlamaForCausalLMEagle3`), as vLLM, SGLang and
TensorRT-LLM read it: a Llama layer whose first products take a token's embedding beside what the
target computed for the token before it. What this engine does not compute is refused by its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engines.native.config import AttentionShape, ModelConfig, Reader, RopeConfig, read_json

_ARCHITECTURES: Final = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")

# Variants of the format by the value that the plain one has; a missing key has it too.
_PLAIN: Final[dict[str, Any]] = {
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "norm_before_residual": False,
    "norm_before_fc": False,
    "norm_output": False,
    "fc_norm": False,
    "logit_scale": 1.0,
}
_PLAIN_INNER: Final[dict[str, Any]] = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "norm_before_fc": False,
    "parallel_draft_step": 1,
}


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """The rotary embedding of Llama 3.1; a factor of 1 is the plain one."""

    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    @classmethod
    def parse(cls, values: Mapping[str, Any], read: Reader) -> Llama3Rope:
        """The scaling of `rope_scaling`, with `rope_theta` in it."""
        return cls(
            read.number("rope_theta"),
            read.number("factor"),
            read.number("low_freq_factor"),
            read.number("high_freq_factor"),
            read.count("original_max_position_embeddings"),
        )


@dataclass(frozen=True, slots=True)
class EagleConfig(AttentionShape):
    """A head's shape, and which of the target's layers it looks at."""

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    draft_vocab_size: int
    vocab_size: int  # the target's
    rms_norm_eps: float
    rope: Llama3Rope | RopeConfig
    layers: tuple[int, ...]  # of the target, whose outputs the head takes, counted from 0

    @classmethod
    def from_dir(cls, folder: Path, target: ModelConfig) -> EagleConfig:
        """Parse folder/config.json; raises EngineStartError naming the file and the key.

        Also where the head is not one for this target.
        """
        path = folder / "config.json"
        raw = read_json(path)
        read = Reader(path, raw)
        _check_plain(raw, read)
        num_heads, hidden_size = read.count("num_attention_heads"), read.count("hidden_size")
        config = cls(
            hidden_size=hidden_size,
            target_hidden_size=read.count("target_hidden_size", hidden_size),
            intermediate_size=read.count("intermediate_size"),
            num_attention_heads=num_heads,
            num_key_value_heads=read.count("num_key_value_heads", num_heads),
            head_dim=read.count("head_dim", hidden_size // num_heads),
            draft_vocab_size=read.count("draft_vocab_size", raw.get("vocab_size")),
            vocab_size=read.count("vocab_size"),
            rms_norm_eps=read.number("rms_norm_eps"),
            rope=_rope(raw, read),
            layers=_layers(raw, read, target.num_hidden_layers),
        )
        config._check(read, target)
        return config

    def _check(self, read: Reader, target: ModelConfig) -> None:
        for name, of_target in (
            ("target_hidden_size", target.hidden_size),
            ("vocab_size", target.vocab_size),
        ):
            if (value := getattr(self, name)) != of_target:
                raise read.error(
                    f"{name} is {value}, and the model's is {of_target};"
                    " name a head that was trained for this model"
                )
        if self.draft_vocab_size > self.vocab_size:
            raise read.error(
                f"draft_vocab_size is {self.draft_vocab_size}, above vocab_size {self.vocab_size}"
            )
        self.check_heads(read)


def _check_plain(raw: Mapping[str, Any], read: Reader) -> None:
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or not set(architectures) & set(_ARCHITECTURES):
        raise read.error(
            f"architectures is {architectures!r}; an EAGLE3 head has {_ARCHITECTURES[0]!r}"
        )
    inner = raw.get("eagle_config") or {}
    for values, plain, where in ((raw, _PLAIN, ""), (inner, _PLAIN_INNER, "eagle_config.")):
        for name, wanted in plain.items():
            value = values.get(name)
            if value is not None and value != wanted:
                raise read.error(
                    f"{where}{name} is {value!r}; this engine runs heads with {wanted!r}"
                )


def _layers(raw: Mapping[str, Any], read: Reader, num_layers: int) -> tuple[int, ...]:
    """The layers whose outputs the head takes.

    `eagle_config` counts them from 0 (TensorRT Model Optimizer, SGLang, TensorRT-LLM); a list
    beside it, as speculators write, counts how many layers came before. Without either it is a
    layer near the beginning, one in the middle and one near the end.
    """
    name = "eagle_aux_hidden_state_layer_ids"
    ids = (raw.get("eagle_config") or {}).get(name)
    if not ids and raw.get(name):
        ids = [i - 1 if isinstance(i, int) else i for i in raw[name]]
    if not ids:
        ids = [1, num_layers // 2 - 1, num_layers - 4]
        if num_layers < 6:
            raise read.error(f"{name} is missing, and the model has only {num_layers} layers")
    if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise read.error(f"{name} is {ids!r}; expected a list of integers")
    if max(ids) == num_layers:  # only where they are counted from 1, as vLLM reads them
        ids = [i - 1 for i in ids]
    if any(not 0 <= i < num_layers for i in ids) or sorted(set(ids)) != [*ids]:
        raise read.error(
            f"{name} is {ids!r}; expected rising numbers of the model's {num_layers} layers"
        )
    return tuple(ids)


def _rope(raw: Mapping[str, Any], read: Reader) -> Llama3Rope | RopeConfig:
    values = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    values = {"rope_theta": raw.get("rope_theta", 10_000.0), **values}
    kind = values.get("rope_type", values.get("type", "default"))
    of = Reader(read.path, values)
    if kind == "default":
        return Llama3Rope(of.number("rope_theta"))
    if kind == "llama3":
        return Llama3Rope.parse(values, of)
    if kind == "yarn":
        return RopeConfig.parse(raw, read)
    raise read.error(f"rope type is {kind!r}; use one of 'default', 'llama3', 'yarn'")
