"""The names that the adapter imports from here."""

from tensorrt_llm.llmapi.arguments import (
    AttentionDpConfig,
    CudaGraphConfig,
    EagleDecodingConfig,
    KvCacheConfig,
    MoeConfig,
    SchedulerConfig,
    TorchCompileConfig,
    TorchLlmArgs,
)
from tensorrt_llm.llmapi.llm import LLM, RequestError
from tensorrt_llm.llmapi.sampling import GuidedDecodingParams, SamplingParams

__all__ = [
    "LLM",
    "AttentionDpConfig",
    "CudaGraphConfig",
    "EagleDecodingConfig",
    "GuidedDecodingParams",
    "KvCacheConfig",
    "MoeConfig",
    "RequestError",
    "SamplingParams",
    "SchedulerConfig",
    "TorchCompileConfig",
    "TorchLlmArgs",
]
