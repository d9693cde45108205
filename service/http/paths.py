"""The paths of all routes: their templates, who may use them, which of them count."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from auth.base import Scope
from service.request import OTHER

# Probes and load balancers have no key.
PROBE_PATHS: Final = frozenset({"/v1/health/live", "/v1/health/ready", "/health", "/ping"})
OPEN_PATHS: Final = PROBE_PATHS | {"/v1/version", "/version"}
# The playground and the catalogue: they hold no secret; what they ask for needs its key.
PAGE_PATHS: Final = frozenset({"/", "/docs"})
_ASSETS: Final = "/assets/"
# Polled for ever: their log lines are for debugging.
QUIET_PATHS: Final = OPEN_PATHS | {"/v1/metrics", "/metrics", "/load"}
GENERATING_PATHS: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
)
ANTHROPIC_PATH: Final = "/v1/messages"  # and all below it

_SCOPES: Final = {
    "/v1/chat/completions": Scope.INFERENCE,
    "/v1/completions": Scope.INFERENCE,
    "/v1/messages": Scope.INFERENCE,
    "/v1/responses": Scope.INFERENCE,
    "/tokenize": Scope.INFERENCE,
    "/detokenize": Scope.INFERENCE,
    "/tokenizer_info": Scope.INFERENCE,
    "/v1/models": Scope.MODELS,
    "/v1/metadata": Scope.MODELS,
    "/v1/manifest": Scope.MODELS,
    "/v1/license": Scope.MODELS,
    "/openapi.json": Scope.MODELS,
    "/v1/metrics": Scope.METRICS,
    "/metrics": Scope.METRICS,
    "/load": Scope.METRICS,
}
# What `NIM_READ_WITHOUT_KEY` can open, by its name: methods and paths.
_READS: Final = {
    "metrics": (frozenset({"GET", "HEAD"}), frozenset({"/v1/metrics", "/metrics"})),
    "models": (frozenset({"GET", "HEAD"}), frozenset({"/v1/models", "/v1/models/{model_id}"})),
    "render": (
        frozenset({"POST"}),
        frozenset({"/v1/chat/completions/render", "/v1/completions/render"}),
    ),
}
READS: Final = tuple(_READS)
# These cost no step of the engine, but this process's time and its store's.
_COUNTED_PATHS: Final = frozenset({"/tokenize", "/detokenize"})
_COUNTED_BELOW: Final = tuple(f"{path}/" for path in sorted(GENERATING_PATHS))

_TEMPLATES: Final = frozenset(
    {
        *GENERATING_PATHS,
        *QUIET_PATHS,
        *_COUNTED_PATHS,
        *PAGE_PATHS,
        "/tokenizer_info",
        "/v1/chat/completions/render",
        "/v1/completions/render",
        "/v1/responses/input_tokens",
        "/v1/messages/count_tokens",
        "/v1/models",
        "/v1/metadata",
        "/v1/manifest",
        "/v1/license",
        "/v1/engine/kill",
    }
)
_BELOW: Final = {
    _ASSETS: "/assets/{name}",
    "/v1/responses/": "/v1/responses/{response_id}",
    "/v1/models/": "/v1/models/{model_id}",
}
_ENDS: Final = ("/cancel", "/input_items")


def scope_of(path: str) -> Scope:
    """The scope that a route and all below it need; what is not listed needs `admin`."""
    while path:
        if path in _SCOPES:
            return _SCOPES[path]
        path = path.rpartition("/")[0]
    return Scope.ADMIN


def is_open(path: str) -> bool:
    """Whether a path needs no key: probes, and the pages that ask for one."""
    return path in OPEN_PATHS or path in PAGE_PATHS or path.startswith(_ASSETS)


def is_open_read(method: str, path: str, reads: Collection[str]) -> bool:
    """Whether a request is one of the reads that need no key."""
    route = route_of(path)
    return any(method in _READS[read][0] and route in _READS[read][1] for read in reads)


def is_counted(path: str) -> bool:
    """Whether a path costs a caller's quota, though it generates nothing."""
    return path in _COUNTED_PATHS or path.startswith(_COUNTED_BELOW)


def route_of(path: str) -> str:
    """The route's template that a path belongs to; `other` for paths that are not ours."""
    if path in _TEMPLATES:
        return path
    for start, template in _BELOW.items():
        if path.startswith(start):
            return template + next((end for end in _ENDS if path.endswith(end)), "")
    return OTHER
