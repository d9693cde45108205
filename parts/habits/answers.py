"""Routes of other servers, and of this one misspelt, each with what to do here."""

from __future__ import annotations

from typing import Final

_CHAT = "Use POST /v1/chat/completions."
_RAW = "Use POST /v1/completions."
_SERVED = "Use GET /v1/models."
_STATE = "Use GET /v1/metadata, or GET /metrics for the load."
_TEXT_ONLY = "Not supported: gpt-oss reads and writes text only."
_GENERATION_ONLY = "Not supported: only text generation."
_BATCHES = "Not supported: batch files; send requests at once, the server queues them."
_STORED = "Not supported; POST /v1/responses continues with previous_response_id."
_OPERATOR = "Not supported: the operator selects the model at the start (`harmonium serve MODEL`)."

# Each holds for all paths below it, too.
_ANSWERS: Final = {
    # OpenAI
    "/v1/embeddings": _GENERATION_ONLY,
    "/v1/moderations": _GENERATION_ONLY,
    "/v1/fine_tuning": _GENERATION_ONLY,
    "/v1/audio": _TEXT_ONLY,
    "/v1/images": _TEXT_ONLY,
    "/v1/videos": _TEXT_ONLY,
    "/v1/batches": _BATCHES,
    "/v1/files": _BATCHES,
    "/v1/assistants": _STORED,
    "/v1/threads": _STORED,
    "/v1/conversations": _STORED,
    "/v1/realtime": _STORED,
    "/v1/vector_stores": _STORED,
    # Ollama
    "/api/chat": _CHAT,
    "/api/generate": _RAW,
    "/api/tags": _SERVED,
    "/api/ps": _SERVED,
    "/api/show": _SERVED,
    "/api/version": "Use GET /version.",
    "/api/embed": _GENERATION_ONLY,
    "/api/embeddings": _GENERATION_ONLY,
    "/api/pull": _OPERATOR,
    "/api/create": _OPERATOR,
    "/api/delete": _OPERATOR,
    # vLLM, SGLang, llama-server, TGI, Triton
    "/generate": _RAW,
    "/generate_stream": _RAW,
    "/completion": _RAW,
    "/infill": _GENERATION_ONLY,
    "/apply-template": "Use POST /v1/chat/completions/render.",
    "/pooling": _GENERATION_ONLY,
    "/score": _GENERATION_ONLY,
    "/v1/score": _GENERATION_ONLY,
    "/rerank": _GENERATION_ONLY,
    "/v1/rerank": _GENERATION_ONLY,
    "/v2/rerank": _GENERATION_ONLY,
    "/embedding": _GENERATION_ONLY,
    "/props": _STATE,
    "/slots": _STATE,
    "/get_model_info": _STATE,
    "/model_info": _STATE,
    "/get_server_info": _STATE,
    "/server_info": _STATE,
    "/info": _STATE,
    "/health_generate": "Use GET /health.",
    "/healthz": "Use GET /health.",
    "/readyz": "Use GET /v1/health/ready.",
    "/livez": "Use GET /v1/health/live.",
    "/v2/health/ready": "Use GET /v1/health/ready.",
    "/v2/health/live": "Use GET /v1/health/live.",
    "/v1/load_lora_adapter": "Not supported: LoRA adapters.",
    "/v1/unload_lora_adapter": "Not supported: LoRA adapters.",
}
# First parts of our routes: without /v1 the client's base URL lacks it.
_OURS: Final = ("/chat/completions", "/completions", "/responses", "/messages", "/models")


def answer_for(path: str) -> str:
    """Say what to do instead of asking for this path; empty if that is not known."""
    if path.startswith("/v1/v1/"):
        return f"Use {path[3:]}: the client adds /v1 to its base URL."
    if any(_is_below(path, ours) for ours in _OURS):
        return f"Use /v1{path}: the client's base URL ends in /v1."
    return next((said for known, said in _ANSWERS.items() if _is_below(path, known)), "")


def _is_below(path: str, known: str) -> bool:
    return path == known or path.startswith(f"{known}/")
