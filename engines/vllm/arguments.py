"""What vLLM is asked to run: every field of a spec under vLLM's own name, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engines.base import Capabilities
from engines.errors import EngineStartError
from engines.guest.arguments import check_agreement, limits_and_options, translated
from engines.spec import EngineSpec

# Without speculation, and with vLLM's own limit of rivals (its option max_logprobs).
CAPABILITIES: Final = Capabilities(frozenset({"exact_continuation"}), max_logprobs=20)

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
    max_num_waiting: int | None
    is_gpu: bool
    num_ranks: int = 1  # of data parallelism: each runs max_num_seqs sequences of its own


def arguments_of(spec: EngineSpec) -> Arguments:
    """Read the spec; EngineStartError names what this engine does not support."""
    limits, options, max_num_waiting = limits_and_options(spec)
    given = {"model": spec.model_dir, **_FIXED, **limits, **_types(spec), **_parallelism(spec)}
    if spec.memory_fraction is not None:
        given["gpu_memory_utilization"] = spec.memory_fraction  # of the CPU's memory too
    check_agreement("vLLM", options, given, _OURS)
    return Arguments(
        engine={**given, **options},
        vocabulary_path=None if spec.vocabulary_path is None else Path(spec.vocabulary_path),
        max_num_waiting=max_num_waiting,
        is_gpu=spec.num_devices > 0,
        num_ranks=given.get("data_parallel_size", 1),
    )


def _types(spec: EngineSpec) -> dict[str, Any]:
    """The dtypes of computation and of K/V; weights keep the checkpoint's."""
    types: dict[str, Any] = {}
    if spec.precision is not None:
        types["dtype"] = translated("vLLM", "precision", spec.precision, _DTYPES)
    if spec.kv_dtype is not None:
        kv_dtype = translated("vLLM", "kv_dtype", spec.kv_dtype, _KV_DTYPES)
        if kv_dtype == "float32" and types.get("dtype") != "float32":
            raise EngineStartError(
                "kv_dtype is 'fp32'; vLLM keeps K/V so only where precision is 'fp32' too"
            )
        # What is computed in is kept as it is: "float32" is not a name that vLLM has for it.
        types["kv_cache_dtype"] = "auto" if kv_dtype == types.get("dtype") else kv_dtype
    return types


def _parallelism(spec: EngineSpec) -> dict[str, Any]:
    """Experts are either all apart or not: vLLM spreads them over every rank of a stage."""
    tp, pp, ep = spec.tensor_parallel, spec.pipeline_parallel, spec.expert_parallel
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
