"""Arguments of the LLM: pydantic classes that refuse what they do not know."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class KvCacheConfig(Strict):
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    max_attention_window: list[int] | None = None
    free_gpu_memory_fraction: float | None = Field(default=0.9, ge=0, le=1)
    dtype: str = "auto"
    tokens_per_block: int = 32
    event_buffer_max_size: int = 0


class CudaGraphConfig(Strict):
    batch_sizes: list[int] | None = None
    max_batch_size: int = 0
    enable_padding: bool = False

    @model_validator(mode="after")
    def _check(self) -> CudaGraphConfig:
        if self.batch_sizes and self.max_batch_size not in (0, max(self.batch_sizes)):
            raise ValueError("batch_sizes and max_batch_size contradict each other")
        return self


class MoeConfig(Strict):
    backend: Literal["AUTO", "CUTLASS", "CUTEDSL", "WIDEEP", "TRTLLM", "DEEPGEMM", "VANILLA",
                     "TRITON"] = "AUTO"  # fmt: skip
    max_num_tokens: int | None = None
    load_balancer: Any = None
    disable_finalize_fusion: bool = False
    use_low_precision_moe_combine: bool = False


class AttentionDpConfig(Strict):
    enable_balance: bool = False
    timeout_iters: int = 50
    batching_wait_iters: int = 10


class SchedulerConfig(Strict):
    capacity_scheduler_policy: str = "GUARANTEED_NO_EVICT"
    context_chunking_policy: str | None = None
    dynamic_batch_config: Any = None
    waiting_queue_policy: str = "fcfs"


class TorchCompileConfig(Strict):
    enable_fullgraph: bool = True
    enable_inductor: bool = False
    enable_piecewise_cuda_graph: bool = False
    capture_num_tokens: list[int] | None = None
    enable_userbuffers: bool = True
    max_num_streams: int = 1


class EagleDecodingConfig(Strict):
    """As in 1.2.1: keywords are set as attributes, so that an alias of a field is no field."""

    max_draft_len: int | None = None
    speculative_model: str | None = None
    eagle3_one_model: bool | None = True
    num_eagle_layers: int | None = None
    greedy_sampling: bool | None = True

    def __init__(self, **given: Any) -> None:
        super().__init__()
        for name, value in given.items():
            setattr(self, name, value)


class TorchLlmArgs(Strict):
    model: str
    tokenizer: str | None = None
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    moe_tensor_parallel_size: int | None = None
    moe_expert_parallel_size: int | None = None
    enable_attention_dp: bool = False
    dtype: str = "auto"
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)
    enable_chunked_prefill: bool = False
    guided_decoding_backend: Literal["xgrammar", "llguidance"] | None = None
    scheduler_config: SchedulerConfig = Field(default_factory=SchedulerConfig)
    speculative_config: EagleDecodingConfig | None = None
    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    max_seq_len: int | None = None
    cuda_graph_config: CudaGraphConfig | None = Field(default_factory=CudaGraphConfig)
    attention_dp_config: AttentionDpConfig | None = None
    moe_config: MoeConfig = Field(default_factory=MoeConfig)
    torch_compile_config: TorchCompileConfig | None = None
    enable_iter_perf_stats: bool = False
    stream_interval: int = 1
    num_postprocess_workers: int = 0
