"""What the native engine is asked to run: the model's shape and the engine's options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from engines.errors import EngineStartError
from engines.native.options import check_numbers
from engines.parts import having
from engines.spec import EngineSpec, check_names, check_understood

DType = Literal["float32", "bfloat16"]
KvDType = Literal["fp8"]
Device = Literal["cpu", "cuda"]
Speculation = Literal["none", "ngram"]
Quantize = Literal["mxfp4"]
LayerType = Literal["full_attention", "sliding_attention"]

_ROPE_KEYS = {
    "rope_type",
    "rope_theta",
    "factor",
    "beta_fast",
    "beta_slow",
    "original_max_position_embeddings",
    "truncate",
    "attention_factor",
}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """YaRN rotary embedding (arXiv 2309.00071), as named in config.json."""

    theta: float
    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float | None  # None: 0.1 ln(factor) + 1

    @classmethod
    def parse(cls, raw: Mapping[str, Any], read: ConfigReader) -> RopeConfig:
        """Read `rope_parameters` (transformers 5) or `rope_scaling` beside `rope_theta`."""
        values: dict[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        rope_type = values.get("rope_type", values.get("type"))
        if rope_type != "yarn":
            raise read.error(f"rope type is {rope_type!r}; gpt-oss uses 'yarn'")
        if unknown := sorted(set(values) - _ROPE_KEYS - {"type"}):
            raise read.error(f"rope key {unknown[0]!r} is not supported")
        theta = values.get("rope_theta", raw.get("rope_theta"))
        of = ConfigReader(read.path, {**values, "rope_theta": theta})
        factor = values.get("attention_factor")
        return cls(
            theta=of.number("rope_theta"),
            factor=of.number("factor"),
            original_max_position_embeddings=of.count("original_max_position_embeddings"),
            beta_fast=of.number("beta_fast", 32.0),
            beta_slow=of.number("beta_slow", 1.0),
            truncate=of.flag("truncate", True),
            attention_factor=None if factor is None else of.number("attention_factor"),
        )


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads, of which several query heads share one of keys and values."""

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int

    @property
    def q_size(self) -> int:
        """Values of all query heads of a token."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Values of all key heads of a token, and of all value heads."""
        return self.num_key_value_heads * self.head_dim

    def check_heads(self, read: ConfigReader) -> None:
        """Raise EngineStartError if the numbers are inconsistent."""
        if self.num_attention_heads % self.num_key_value_heads:
            raise read.error("num_attention_heads is not a multiple of num_key_value_heads")
        if self.head_dim % 2:
            raise read.error(f"head_dim is {self.head_dim}; rotary embedding needs an even number")


@dataclass(frozen=True, slots=True)
class ModelConfig(AttentionShape):
    """The shape of a gpt-oss model, from the config.json of its checkpoint."""

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_local_experts: int
    num_experts_per_tok: int
    sliding_window: int
    layer_types: tuple[LayerType, ...]
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    swiglu_limit: float
    swiglu_alpha: float
    attention_bias: bool
    tie_word_embeddings: bool
    rope: RopeConfig

    @classmethod
    def from_dir(cls, model_dir: Path) -> ModelConfig:
        """Parse model_dir/config.json; raises EngineStartError naming the file and the key."""
        path = model_dir / "config.json"
        raw = read_json(path)
        read = ConfigReader(path, raw)
        if raw.get("model_type") != "gpt_oss":
            raise read.error(f"model_type is {raw.get('model_type')!r}; this engine runs 'gpt_oss'")
        if raw.get("hidden_act", "silu") != "silu":
            raise read.error(f"hidden_act is {raw['hidden_act']!r}; gpt-oss uses 'silu'")
        num_heads, num_layers = read.count("num_attention_heads"), read.count("num_hidden_layers")
        config = cls(
            hidden_size=read.count("hidden_size"),
            num_hidden_layers=num_layers,
            num_attention_heads=num_heads,
            num_key_value_heads=read.count("num_key_value_heads"),
            head_dim=read.count("head_dim", read.count("hidden_size") // num_heads),
            intermediate_size=read.count("intermediate_size"),
            num_local_experts=read.count("num_local_experts"),
            num_experts_per_tok=read.count("num_experts_per_tok", raw.get("experts_per_token")),
            sliding_window=read.count("sliding_window"),
            layer_types=_layer_types(read, num_layers),
            vocab_size=read.count("vocab_size"),
            max_position_embeddings=read.count("max_position_embeddings"),
            rms_norm_eps=read.number("rms_norm_eps"),
            swiglu_limit=read.number("swiglu_limit", 7.0),
            swiglu_alpha=read.number("swiglu_alpha", 1.702),
            attention_bias=read.flag("attention_bias", True),
            tie_word_embeddings=read.flag("tie_word_embeddings", False),
            rope=RopeConfig.parse(raw, read),
        )
        config._check(read)
        return config

    def _check(self, read: ConfigReader) -> None:
        self.check_heads(read)
        if self.num_experts_per_tok > self.num_local_experts:
            raise read.error("num_experts_per_tok is above num_local_experts")


@dataclass(frozen=True, slots=True)
class NativeConfig:
    """The native engine's options; None leaves a choice to the engine."""

    model_dir: Path
    device: Device = "cpu"
    dtype: DType = "float32"
    quantize: Quantize | None = None  # round experts that are stored in more bits, while loading
    max_model_len: int | None = None  # prompt and generated tokens together
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512  # tokens computed in one step at most
    block_size: int = 16  # tokens per KV block
    kv_dtype: KvDType | None = None  # of the KV cache; None: dtype
    num_kv_blocks: int | None = None
    memory_fraction: float = 0.9  # of the device's memory, for weights, KV cache and all else
    num_gpus: int = 1  # each computes some of the layers, or is a rank: backends/cuda/passes/
    tensor_parallel: int = 1  # ranks that share each layer
    expert_parallel: int = 1  # tensor_parallel: experts are split by expert; 1: by column
    host_kv_bytes: int = 0  # of host memory, for blocks that are evicted from the device's
    num_threads: int | None = None
    max_num_waiting: int | None = None
    enable_prefix_caching: bool = True
    overlap_steps: bool = False  # launch a step before the one before is taken in
    speculation: Speculation = "none"  # propose tokens, to verify several in one step
    vocabulary_path: Path | None = None  # the tokens' bytes, for grammars: grammar/vocabulary.py
    artefact_dir: Path | None = None  # of the pre-built engine: backends/cuda/artefact/parts.py
    keep_weights: bool = False  # pack them into artefact_dir where they are not there yet
    tune: bool = False  # measure kernel variants and keep the fastest in artefact_dir
    # The longest gap between two tokens of a stream that prefill beside it may make; None: any.
    max_token_gap_ms: float | None = None
    batch_invariant: bool = False  # a request's logits are the same to the bit in any batch
    grammar_timeout_s: float = 10.0  # a grammar that takes longer to compile is refused
    max_adapters: int = 0  # LoRA adapters that a step can compute with
    max_adapter_rank: int = 0

    def __post_init__(self) -> None:
        if self.device not in get_args(Device):
            raise EngineStartError(f"device is {self.device!r}; use one of {get_args(Device)}")
        if self.dtype not in get_args(DType):
            raise EngineStartError(f"dtype is {self.dtype!r}; use one of {get_args(DType)}")
        if self.speculation not in get_args(Speculation):
            raise EngineStartError(
                f"speculation is {self.speculation!r}; use one of {get_args(Speculation)}"
            )
        if self.quantize not in (None, *get_args(Quantize)):
            raise EngineStartError(
                f"quantize is {self.quantize!r}; use one of {get_args(Quantize)}, or leave it out"
            )
        if self.kv_dtype not in (None, *get_args(KvDType)):
            raise EngineStartError(
                f"kv_dtype is {self.kv_dtype!r}; use one of {get_args(KvDType)}, or leave it out"
            )
        if self.artefact_dir is not None and self.device != "cuda":
            raise EngineStartError("artefact_dir is set; only device cuda has an artefact")
        if self.batch_invariant and self.device != "cuda":
            raise EngineStartError("batch_invariant is true; only device cuda can keep that")
        if self.num_gpus != 1:
            self._check_several_gpus()
        self._check_ranks()
        if self.host_kv_bytes < 0:
            raise EngineStartError(f"host_kv_bytes is {self.host_kv_bytes}; use 0 or more")
        check_numbers(self)

    @classmethod
    def from_spec(cls, spec: EngineSpec) -> NativeConfig:
        """The options of a spec; raises EngineStartError naming what this engine cannot do."""
        check_understood(spec, {*_UNDERSTOOD, *having("engine")})
        given = {name: getattr(spec, name) for name in _SPEC_PATHS}
        if spec.memory_fraction is not None:
            given["memory_fraction"] = spec.memory_fraction
        if spec.kv_dtype in get_args(KvDType):
            given["kv_dtype"] = spec.kv_dtype
        given = {name: value for name, value in given.items() if value is not None}
        given |= {
            name: getattr(spec, name)
            for name in ("tensor_parallel", "expert_parallel")
            if getattr(spec, name) != 1
        }
        if spec.pipeline_parallel != max(spec.num_devices // spec.tensor_parallel, 1):
            raise EngineStartError(
                f"num_devices is {spec.num_devices} and pipeline_parallel"
                f" {spec.pipeline_parallel}; the native engine has a pipeline stage on each GPU"
            )
        device = {"device": "cuda", "num_gpus": spec.num_devices} if spec.num_devices else {}
        config = cls.from_options({**device, **spec.options, **spec.limits, **given})
        config._check_dtypes(spec)
        return config

    def _check_ranks(self) -> None:
        """Refuse a split of layers that there is not."""
        on_gpus = self.device == "cuda" and self.tensor_parallel > 1
        if on_gpus and self.num_gpus != self.tensor_parallel:
            raise EngineStartError(
                f"tensor_parallel is {self.tensor_parallel} and num_gpus {self.num_gpus}; each rank"
                f" has a GPU of its own: use num_gpus {self.tensor_parallel}"
            )
        if on_gpus and self.expert_parallel != 1:
            raise EngineStartError(
                f"expert_parallel is {self.expert_parallel}; on GPUs each expert is split: use 1"
            )
        if self.expert_parallel not in (1, self.tensor_parallel):
            raise EngineStartError(
                f"expert_parallel is {self.expert_parallel}; use 1 (each expert is split), or"
                f" tensor_parallel, {self.tensor_parallel} (each rank has some experts)"
            )

    def _check_several_gpus(self) -> None:
        """Refuse options that need a single GPU."""
        if self.num_gpus < 1:
            raise EngineStartError(f"num_gpus is {self.num_gpus}; use 1 or more")
        others = {
            "device": self.device != "cuda",
            "tune": self.tune,
        }
        for name, is_refused in others.items():
            if is_refused:
                raise EngineStartError(
                    f"num_gpus is {self.num_gpus} and {name} is {getattr(self, name)!r};"
                    " that needs num_gpus 1"
                )

    def _check_dtypes(self, spec: EngineSpec) -> None:
        """K/V are kept as `dtype` or in 8 bits; weights are stored as `dtype`, or packed."""
        own = _SHORT[self.dtype]
        for name, usable in (
            ("kv_dtype", {own, *get_args(KvDType)}),
            ("precision", {own, "mxfp4"}),
        ):
            value = getattr(spec, name)
            if value is not None and value not in usable:
                raise EngineStartError(
                    f"{name} is {value!r}; the native engine with dtype {self.dtype!r} "
                    f"takes {' or '.join(sorted(usable))}"
                )

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> NativeConfig:
        """Build from plain JSON values; an unknown option is an error naming the nearest."""
        check_names("native engine option", options, [field.name for field in fields(cls)])
        if "model_dir" not in options:
            raise EngineStartError("native engine option 'model_dir' is missing")
        paths = {name: Path(options[name]) for name in _SPEC_PATHS if options.get(name) is not None}
        return cls(**{**options, **paths})


_SPEC_PATHS = ("model_dir", "vocabulary_path", "artefact_dir")
_UNDERSTOOD = (
    *_SPEC_PATHS,
    "limits",
    "precision",
    "kv_dtype",
    "memory_fraction",
    "num_devices",
    "pipeline_parallel",
    "tensor_parallel",
    "expert_parallel",
)
_SHORT: dict[DType, str] = {"float32": "fp32", "bfloat16": "bf16"}


class ConfigReader:
    """Typed look-ups in one JSON object, with errors that name its file and key."""

    def __init__(self, path: Path, raw: Mapping[str, Any]) -> None:
        self.path, self._raw = path, raw

    def error(self, reason: str) -> EngineStartError:
        return EngineStartError(f"{self.path}: {reason}")

    def number(self, key: str, default: float | None = None) -> float:
        """Read a positive number; raises EngineStartError for anything else."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self.error(f"{key} is {value!r}; expected a positive number")
        return float(value)

    def count(self, key: str, default: int | None = None) -> int:
        """Read a positive integer; raises EngineStartError for anything else."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(f"{key} is {value!r}; expected a positive integer")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Read true or false; raises EngineStartError for anything else."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} is {value!r}; expected true or false")
        return value

    def _value(self, key: str, default: Any) -> Any:
        value = self._raw.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"{key} is missing")
        return value


def _layer_types(read: ConfigReader, num_layers: int) -> tuple[LayerType, ...]:
    """Each layer's attention; without the key, gpt-oss alternates and begins with the window."""
    alternating: list[LayerType] = ["sliding_attention", "full_attention"]
    types = read._value("layer_types", [alternating[i % 2] for i in range(num_layers)])
    if len(types) != num_layers:
        raise read.error(f"layer_types has {len(types)} entries for {num_layers} layers")
    for name in types:
        if name not in get_args(LayerType):
            raise read.error(f"layer type {name!r} is unknown; use one of {get_args(LayerType)}")
    return tuple(types)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises EngineStartError naming the file."""
    try:
        if path.exists() and not path.is_file():
            raise EngineStartError(f"{path}: is not a regular file")
        raw = json.loads(path.read_text())
    except OSError as error:
        raise EngineStartError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise EngineStartError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise EngineStartError(f"{path}: expected a JSON object")
    return raw
