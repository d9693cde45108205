"""What vLLM is asked to run: every field of a spec under vLLM's own name, or refused."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from engines.base import Capabilities
from engines.errors import EngineStartError
from engines.spec import EngineSpec, check_understood

MAX_NUM_WAITING: Final = 1024

# Without speculation, and with vLLM's own limit of rivals (its option max_logprobs).
CAPABILITIES: Final = Capabilities(exact_continuation=False, max_logprobs=20)

_UNDERSTOOD: Final = (
    "limits",
    "model_dir",
    "vocabulary_path",
    "precision",
    "kv_dtype",
    "memory_fraction",
    "num_devices",
    "tensor_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "attention_dp",
)
_LIMITS: Final = ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
_DTYPES: Final = {"mxfp4": "bfloat16", "bf16": "bfloat16", "fp32": "float32"}  # by precision
_KV_DTYPES: Final = {"fp8": "fp8", "bf16": "bfloat16", "fp32": "float32"}
_FIXED: Final[Mapping[str, Any]] = {
    "scheduling_policy": "priority",
    "generation_config": "vllm",  # what ends an answer is said with each request
    "disable_log_stats": True,  # its own; ours are counted (counters.py)
}
_OURS: Final = ("model", "tokenizer", "skip_tokenizer_init", "structured_outputs_config", *_FIXED)


@dataclass(frozen=True, slots=True)
class Arguments:
    """How to start vLLM: `engine` are fields of its AsyncEngineArgs."""

    engine: Mapping[str, Any]
    vocabulary_path: Path | None
    max_num_waiting: int
    is_gpu: bool
    num_ranks: int = 1  # of data parallelism: each runs max_num_seqs sequences of its own


def arguments_of(spec: EngineSpec) -> Arguments:
    """Take all that the spec says; EngineStartError names what this engine cannot do."""
    check_understood(spec, _UNDERSTOOD)
    if spec.model_dir is None:
        raise EngineStartError("engine 'vllm' needs model_dir, the folder of the checkpoint")
    limits, options = dict(spec.limits), dict(spec.options)
    # The one limit that is ours; a profile has it among its options.
    max_num_waiting = options.pop("max_num_waiting", MAX_NUM_WAITING)
    max_num_waiting = limits.pop("max_num_waiting", max_num_waiting)
    _check_names("limit", limits, _LIMITS)
    given = {
        "model": spec.model_dir,
        **_FIXED,
        **limits,
        **_types(spec),
        **_parallelism(spec),
    }
    if spec.memory_fraction is not None:
        given["gpu_memory_utilization"] = spec.memory_fraction  # of the CPU's memory too
    return Arguments(
        engine={**given, **_options(options, given)},
        vocabulary_path=None if spec.vocabulary_path is None else Path(spec.vocabulary_path),
        max_num_waiting=max_num_waiting,
        is_gpu=spec.num_devices > 0,
        num_ranks=given.get("data_parallel_size", 1),
    )


def check_options(names: Collection[str], known: Collection[str], version: str) -> None:
    """Raise EngineStartError naming an argument that this version of vLLM does not have."""
    _check_names(f"option of vLLM {version}", names, known)


def checked_config(model_dir: Path, precision: str | None) -> Mapping[str, Any]:
    """The checkpoint's config.json; raises EngineStartError for none.

    Raises it too unless what is asked for is what is stored: vLLM takes the weights as they are.
    """
    path = model_dir / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise EngineStartError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise EngineStartError(f"{path}: is not valid JSON: {error}") from error
    stored = (config.get("quantization_config") or {}).get("quant_method")
    if precision is not None and (precision == "mxfp4") != (stored == "mxfp4"):
        raise EngineStartError(
            f"precision is {precision!r}, but {path} says that the weights are "
            f"{'not quantized' if stored is None else stored}; vLLM takes them as they are: "
            "choose another profile"
        )
    return dict(config)


def _types(spec: EngineSpec) -> dict[str, Any]:
    """Of what is computed and of K/V; weights are as the checkpoint has them."""
    types: dict[str, Any] = {}
    if spec.precision is not None:
        types["dtype"] = _known("precision", spec.precision, _DTYPES)
    if spec.kv_dtype is not None:
        kv_dtype = _known("kv_dtype", spec.kv_dtype, _KV_DTYPES)
        if kv_dtype == "float32" and types.get("dtype") != "float32":
            raise EngineStartError(
                "kv_dtype is 'fp32'; vLLM keeps K/V so only where precision is 'fp32' too"
            )
        # What is computed in is kept as it is: "float32" is no name that vLLM has for it.
        types["kv_cache_dtype"] = "auto" if kv_dtype == types.get("dtype") else kv_dtype
    return types


def _parallelism(spec: EngineSpec) -> dict[str, Any]:
    """Experts are either all apart or not: vLLM spreads them over every rank of a stage."""
    tp, pp, ep = spec.tensor_parallel, spec.pipeline_parallel, spec.expert_parallel
    if tp * pp != max(spec.num_devices, 1):
        raise EngineStartError(
            f"tensor_parallel {tp} and pipeline_parallel {pp} need {tp * pp} GPUs, "
            f"but num_devices is {spec.num_devices}"
        )
    if ep not in (1, tp):
        raise EngineStartError(
            f"expert_parallel is {ep}; vLLM spreads experts over all {tp} GPUs of a stage or none"
        )
    wide: dict[str, Any] = {"enable_expert_parallel": True} if ep > 1 else {}
    if pp > 1:
        wide["pipeline_parallel_size"] = pp
    if tp > 1:
        wide["data_parallel_size" if spec.attention_dp else "tensor_parallel_size"] = tp
    return wide


def _options(options: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """vLLM's own; what the spec says by another name, they may only repeat."""
    for name, value in options.items():
        if name in _OURS or given.get(name, value) != value:
            raise EngineStartError(
                f"vLLM's option {name!r} is {value!r}, which this server decides"
                + (f": {given[name]!r}" if name in given else "")
            )
    return options


def _check_names(kind: str, names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            nearest = get_close_matches(name, known, n=1, cutoff=0.0)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise EngineStartError(f"{name!r} is no {kind}{hint}")


def _known(name: str, value: str, known: Mapping[str, str]) -> str:
    if value not in known:
        raise EngineStartError(f"{name} is {value!r}; vLLM is given {', '.join(known)}")
    return known[value]
