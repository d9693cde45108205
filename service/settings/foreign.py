"""Variables of NVIDIA's NIM that are not settings here, each with what to do instead.

The names are those of NIM 1.x and 2.x (docs.nvidia.com/nim/large-language-models).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_BUILT_IN = "not needed: Harmony, its tool calls and its reasoning are built in"
_AUTOMATIC = "not needed: the server does this automatically"
_LORA = "not supported: LoRA adapters"
_CODE = "not supported: custom code"
_NODES = "not supported: one server runs on one machine; use several servers, or NVIDIA Dynamo"
_PARALLEL = (
    "use NIM_TAGS_SELECTOR, e.g. tp=2 or pp=2 (`harmonium profiles` lists what fits), "
    "or NIM_REPLICAS"
)
_MEMORY = "use NIM_KVCACHE_PERCENT"
_OWN_MODEL = "use NIM_MODEL_PATH"
_ONE_PORT = "not needed: health, metrics and API share NIM_SERVER_PORT, and health needs no key"
_CORS = "use NIM_CORS_ALLOW_ORIGINS: listed origins may use the API's methods and every header"
_DRAFT = (
    "use a profile with speculation (`harmonium profiles`); n-gram speculation is on by default"
)
_MANIFEST = "not supported: a download without the manifest; a NIMCache names a profile"
_CAPTURE = "use NIM_OTEL_CAPTURE_CONTENT, which adds prompts and answers to traces"

VARIABLES: Final[dict[str, str]] = {
    "NIM_CACHE_PROBE_TIMEOUT": "not supported: a file system test at the start",
    "NIM_CAPTURE_ARGS": _CAPTURE,
    "NIM_CAPTURE_ENABLE": _CAPTURE,
    "NIM_CHAT_TEMPLATE": _BUILT_IN,
    "NIM_CORS_ALLOW_HEADERS": _CORS,
    "NIM_CORS_ALLOW_METHODS": _CORS,
    "NIM_CORS_EXPOSE_HEADERS": _CORS,
    "NIM_CORS_MAX_AGE": _CORS,
    "NIM_CUSTOM_GUIDED_DECODING_BACKENDS": _CODE,
    "NIM_CUSTOM_MODEL_NAME": _OWN_MODEL,
    "NIM_DISABLE_CUDA_GRAPH": "not supported: the native engine decodes by CUDA graphs only",
    "NIM_DISABLE_OVERLAP_SCHEDULING": _AUTOMATIC,
    "NIM_DRAFT_MODEL_PATH": _DRAFT,
    "NIM_DYNAMO_FRONTEND": _NODES,
    "NIM_DYNAMO_SINGLE": _NODES,
    "NIM_DYNAMO_WORKER": _NODES,
    "NIM_ENABLE_AUTO_TOOL_CHOICE": _BUILT_IN,
    "NIM_ENABLE_KV_CACHE_REUSE": "not needed: the prefix cache is always on",
    "NIM_ENABLE_PROMPT_LOGPROBS": "not needed: requests enable them with prompt_logprobs",
    "NIM_ENGINE_MODEL_DOWNLOAD_ONLY": _MANIFEST,
    "NIM_ENGINE_MODEL_PATH": _MANIFEST,
    "NIM_FORCE_DETERMINISTIC": "use NIM_BATCH_INVARIANT",
    "NIM_FT_MODEL": _OWN_MODEL,
    "NIM_GPU_MEM_FRACTION": _MEMORY,
    "NIM_GRPC_API_PORT": "not supported: gRPC; the API is HTTP",
    "NIM_GUIDED_DECODING_BACKEND": "not needed: schemas are enforced by llguidance",
    "NIM_HEALTH_PORT": _ONE_PORT,
    "NIM_KV_CACHE_PERCENT": _MEMORY,
    "NIM_LEADER_ROLE": _NODES,
    "NIM_LOW_MEMORY_MODE": "use NIM_MAX_MODEL_LEN, or a smaller NIM_KVCACHE_PERCENT",
    "NIM_MANIFEST_ALLOW_UNSAFE": "not supported: use NIM_MODEL_PATH for your own files",
    "NIM_MAX_CPU_LORAS": _LORA,
    "NIM_MAX_GPU_LORAS": _LORA,
    "NIM_MAX_LORA_RANK": _LORA,
    "NIM_MIDDLEWARE_CONFIG_PATH": _CODE,
    "NIM_MPI_ALLOW_RUN_AS_ROOT": _NODES,
    "NIM_MULTI_NODE": _NODES,
    "NIM_NGINX_DIR": "not needed: there is no nginx",
    "NIM_NODE_RANK": _NODES,
    "NIM_NUM_COMPUTE_NODES": _NODES,
    "NIM_NUM_KV_CACHE_SEQ_LENS": _AUTOMATIC,
    "NIM_NUM_SPECULATIVE_TOKENS": _DRAFT,
    "NIM_PASSTHROUGH_ARGS": "not supported: engine flags; see `harmonium serve --help`",
    "NIM_PEFT_API_TIMEOUT_SECS": _LORA,
    "NIM_PEFT_REFRESH_INTERVAL": _LORA,
    "NIM_PEFT_SOURCE": _LORA,
    "NIM_PER_REQ_METRICS_ENABLE": "not needed: usage in each answer, and traces (NIM_ENABLE_OTEL)",
    "NIM_PIPELINE_PARALLEL_SIZE": _PARALLEL,
    "NIM_REASONING_PARSER": _BUILT_IN,
    "NIM_RELAX_MEM_CONSTRAINTS": "use NIM_MODEL_PROFILE to force a profile, or NIM_MAX_MODEL_LEN",
    "NIM_SAGEMAKER_MODE": "not supported: SageMaker's routes, except /ping",
    "NIM_SCHEDULER_POLICY": _AUTOMATIC,
    "NIM_SDK_USE_NATIVE_TLS": "use SSL_CERT_FILE for downloads through a private CA",
    "NIM_SSL_CERT_PATH": "use NIM_SSL_CERTS_PATH",
    "NIM_TENSOR_PARALLEL_SIZE": _PARALLEL,
    "NIM_TOOL_CALL_PARSER": _BUILT_IN,
    "NIM_TOOL_PARSER_PLUGIN": _BUILT_IN,
    "NIM_TRITON_GRPC_PORT": "not supported: gRPC; the API is HTTP",
    "NIM_TRITON_METRICS_PORT": _ONE_PORT,
    "NIM_TRUST_CUSTOM_CODE": _CODE,
    "NIM_USE_SGLANG": "not supported: SGLang; `harmonium profiles` lists the engines",
    "NIM_WORKSPACE": "use NIM_MODEL_PATH for a folder of weights, NIM_CACHE_PATH for the cache",
}


def by_answer(names: Iterable[str]) -> dict[str, list[str]]:
    """The names that NIM has, under what to do about them; names of neither are left out."""
    grouped: dict[str, list[str]] = {}
    for name in names:
        if name in VARIABLES:
            grouped.setdefault(VARIABLES[name], []).append(name)
    return grouped
