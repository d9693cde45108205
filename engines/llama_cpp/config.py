"""What llama.cpp is asked to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

from engines.errors import EngineStartError
from engines.native.options import check_numbers
from engines.spec import EngineSpec, check_names, check_understood
from profiles.checkpoints.gguf import first_file
from profiles.errors import ModelStoreError

KvDtype = Literal["fp16", "bf16", "q8_0"]

KV_BYTES: Final[dict[KvDtype, float]] = {"fp16": 2, "bf16": 2, "q8_0": 34 / 32}

_LLAMA_MAX_SEQ: Final = 256  # sequences that llama.cpp is built for


@dataclass(frozen=True, slots=True)
class LlamaCppConfig:
    """llama.cpp's options under the native engine's names; None leaves a choice to the engine."""

    model_dir: Path  # a folder with one GGUF model, or its file
    num_devices: int = 0  # GPUs
    gpu_layers: int | None = None  # on the GPU, from the output down, which is one; None: all
    precision: str | None = None  # that the experts must be stored in
    kv_dtype: KvDtype = "fp16"
    max_model_len: int | None = None  # prompt and generated tokens together
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 512  # tokens computed in one step: the prefill chunk
    block_size: int = 32  # tokens per KV block
    num_kv_blocks: int | None = None
    memory_fraction: float = 0.9  # of the memory that the weights leave
    num_threads: int | None = None
    max_num_waiting: int | None = None
    max_token_gap_ms: float | None = None  # as the native engine's
    enable_prefix_caching: bool = True  # costs the layers with a window a cell for every token
    vocabulary_path: Path | None = None  # the tokens' bytes, for grammars
    grammar_timeout_s: float = 10.0  # a grammar that takes longer to compile is refused

    def __post_init__(self) -> None:
        if self.kv_dtype not in get_args(KvDtype):
            raise EngineStartError(f"kv_dtype is {self.kv_dtype!r}; use one of {get_args(KvDtype)}")
        if self.num_devices > 1:
            raise EngineStartError(
                f"num_devices is {self.num_devices}; the llama_cpp engine runs on one GPU"
            )
        if self.gpu_layers is not None and not self.num_devices:
            raise EngineStartError("gpu_layers is set; it needs a profile for a GPU")
        check_numbers(self)
        if self.max_num_seqs > MAX_SEQUENCES:
            raise EngineStartError(
                f"max_num_seqs is {self.max_num_seqs}; llama.cpp runs at most {MAX_SEQUENCES}"
            )

    @classmethod
    def from_spec(cls, spec: EngineSpec) -> LlamaCppConfig:
        """Read the spec; EngineStartError names what this engine does not support."""
        check_understood(spec, ("limits", *_TAKEN))
        nothing = EngineSpec(spec.engine)
        given = {name: getattr(spec, name) for name in _TAKEN}
        given = {name: value for name, value in given.items() if value != getattr(nothing, name)}
        return cls.from_options({**spec.options, **spec.limits, **given})

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> LlamaCppConfig:
        """Build from plain JSON values; an unknown option is an error naming the nearest."""
        check_names("llama_cpp engine option", options, [field.name for field in fields(cls)])
        if "model_dir" not in options:
            raise EngineStartError("llama_cpp engine option 'model_dir' is missing")
        paths = {name: Path(options[name]) for name in _PATHS if options.get(name) is not None}
        return cls(**{**options, **paths})

    @property
    def num_holders(self) -> int:
        """How many sequences may hold K/V (cells.py): with prefix caching some wait to be found."""
        if not self.enable_prefix_caching:
            return self.max_num_seqs
        return min(4 * self.max_num_seqs + 16, _LLAMA_MAX_SEQ // 2)

    @property
    def model_path(self) -> Path:
        """The GGUF file, of a model in several the first; raises EngineStartError for none."""
        path = self.model_dir
        try:
            found = first_file(path)
        except ModelStoreError as error:
            raise EngineStartError(str(error)) from None
        if found is None:
            raise EngineStartError(f"{path} is neither a GGUF file nor a folder with one")
        return found


MAX_SEQUENCES: Final = 56  # num_holders
_PATHS: Final = ("model_dir", "vocabulary_path")
_TAKEN: Final = (*_PATHS, "precision", "kv_dtype", "memory_fraction", "num_devices")
