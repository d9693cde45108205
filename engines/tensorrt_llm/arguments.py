"""What TensorRT-LLM is asked to run: every field of a spec under its own name, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engines.base import MAY_LACK, Capabilities
from engines.errors import EngineStartError
from engines.guest.arguments import check_agreement, limits_and_options, translated
from engines.spec import EngineSpec

LIBRARY: Final = "TensorRT-LLM"
MAX_LOGPROBS: Final = 20  # what its sampler ranks for everybody at once

# What release 1.2 has, with its default sampler: it takes seeds, penalties and min_p, and passes
# over them; min_tokens keeps back one of several ends.
_HAS: Final = {"grammar", "top_k", "logit_bias", "cache_salt", "continuation"}
CAPABILITIES: Final = Capabilities(MAY_LACK - _HAS, max_logprobs=MAX_LOGPROBS)

# Fields of its LLM that are classes of its own (tensorrt_llm.llmapi).
GROUPS: Final[Mapping[str, str]] = {
    "kv_cache_config": "KvCacheConfig",
    "cuda_graph_config": "CudaGraphConfig",
    "moe_config": "MoeConfig",
    "attention_dp_config": "AttentionDpConfig",
    "scheduler_config": "SchedulerConfig",
    "torch_compile_config": "TorchCompileConfig",
}
_DTYPES: Final = {"mxfp4": "bfloat16", "bf16": "bfloat16"}  # by precision
_KV_DTYPES: Final = {"fp8": "fp8", "bf16": "auto"}
_NAMES: Final = {
    "max_model_len": "max_seq_len",
    "max_num_seqs": "max_batch_size",
    "max_num_batched_tokens": "max_num_tokens",
}
_FIXED: Final[Mapping[str, Any]] = {
    "enable_iter_perf_stats": True,  # what waits and what K/V is in use
    "enable_chunked_prefill": True,  # else no prompt may be longer than a step
}
_OURS: Final = (
    *("model", "tokenizer", "skip_tokenizer_init", "trust_remote_code", "guided_decoding_backend"),
    # Token ids go out: there is no text to work on.
    *("num_postprocess_workers", "postprocess_tokenizer_dir", "reasoning_parser"),
    "backend",
)
_EAGLE: Final = ("Eagle", "Eagle3")


@dataclass(frozen=True, slots=True)
class TorchArguments:
    """How to start TensorRT-LLM: `engine` are fields of its TorchLlmArgs, groups as mappings."""

    engine: Mapping[str, Any]
    vocabulary_path: Path | None
    max_num_waiting: int | None
    num_ranks: int = 1  # of data parallelism: each runs max_batch_size sequences of its own

    @property
    def max_drafts(self) -> int:
        """Draft tokens per sequence that one step verifies."""
        drafts = self.engine.get("speculative_config")
        return int(drafts["max_draft_len"]) if drafts else 0


def arguments_of(spec: EngineSpec) -> TorchArguments:
    """Read the spec; EngineStartError names what this engine does not support."""
    limits, options, max_num_waiting = limits_and_options(spec)
    if spec.num_devices == 0:
        raise EngineStartError(f"num_devices is 0; {LIBRARY} runs on GPUs only")
    given = {
        "model": spec.model_dir,
        **_FIXED,
        **{_NAMES[name]: value for name, value in limits.items()},
        **_precision(spec),
        **_parallelism(spec),
    }
    kv_cache = _kv_cache(spec)
    check_agreement(f"{LIBRARY}'s kv_cache_config", options.get("kv_cache_config") or {}, kv_cache)
    if kv_cache:
        options["kv_cache_config"] = {**kv_cache, **(options.get("kv_cache_config") or {})}
    if (drafts := options.get("speculative_config")) is not None:
        options["speculative_config"] = _drafts(drafts)
    check_agreement(LIBRARY, options, given, _OURS)
    return TorchArguments(
        engine={**given, **options},
        vocabulary_path=None if spec.vocabulary_path is None else Path(spec.vocabulary_path),
        max_num_waiting=max_num_waiting,
        num_ranks=spec.tensor_parallel if spec.attention_dp else 1,
    )


def _precision(spec: EngineSpec) -> dict[str, Any]:
    """The dtype of computation; weights keep the checkpoint's."""
    if spec.precision is None:
        return {}
    return {"dtype": translated(LIBRARY, "precision", spec.precision, _DTYPES)}


def _kv_cache(spec: EngineSpec) -> dict[str, Any]:
    """Of the memory that weights leave; its makers' files count so, and so do profiles."""
    group: dict[str, Any] = {}
    if spec.memory_fraction is not None:
        group["free_gpu_memory_fraction"] = spec.memory_fraction
    if spec.kv_dtype is not None:
        group["dtype"] = translated(LIBRARY, "kv_dtype", spec.kv_dtype, _KV_DTYPES)
    return group


def _parallelism(spec: EngineSpec) -> dict[str, Any]:
    """Experts are split as many ways as `ep` says, and each of these over the GPUs that are left.

    The split must come out even.
    """
    tp, pp, ep = spec.tensor_parallel, spec.pipeline_parallel, spec.expert_parallel
    if tp % ep:
        raise EngineStartError(f"expert_parallel is {ep}; it must divide tensor_parallel, {tp}")
    wide: dict[str, Any] = {}
    if pp > 1:
        wide["pipeline_parallel_size"] = pp
    if tp > 1:
        wide |= {
            "tensor_parallel_size": tp,
            "moe_expert_parallel_size": ep,
            "moe_tensor_parallel_size": tp // ep,
        }
    if spec.attention_dp:
        wide["enable_attention_dp"] = True
    return wide


def _drafts(group: Mapping[str, Any]) -> Mapping[str, Any]:
    """EAGLE3's options, under the release's names (drafts.py)."""
    kind = group.get("decoding_type")
    if kind not in _EAGLE:
        raise EngineStartError(
            f"speculative_config.decoding_type is {kind!r}; use {' or '.join(_EAGLE)} with the "
            "model that drafts (speculative_model_dir)"
        )
    for name in ("max_draft_len", "speculative_model_dir"):
        if not group.get(name):
            raise EngineStartError(f"speculative_config.{name} is missing; EAGLE3 needs it")
    if "eagle3_one_model" in group:
        raise EngineStartError(
            "the server sets speculative_config.eagle3_one_model by the release; leave it out"
        )
    return {name: value for name, value in group.items() if name != "decoding_type"}
