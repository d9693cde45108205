"""Which scope each route needs; what is not listed needs `admin`."""

from __future__ import annotations

from auth.base import Scope

# Probes and load balancers have no key.
OPEN_PATHS = frozenset({"/v1/health/live", "/v1/health/ready", "/health", "/v1/version"})

_SCOPES = {
    "/v1/chat/completions": Scope.INFERENCE,
    "/v1/completions": Scope.INFERENCE,
    "/v1/messages": Scope.INFERENCE,
    "/v1/responses": Scope.INFERENCE,
    "/tokenize": Scope.INFERENCE,
    "/detokenize": Scope.INFERENCE,
    "/v1/models": Scope.MODELS,
    "/v1/metadata": Scope.MODELS,
    "/openapi.json": Scope.MODELS,
    "/docs": Scope.MODELS,
    "/v1/metrics": Scope.METRICS,
    "/metrics": Scope.METRICS,
}


def scope_of(path: str) -> Scope:
    """The scope of a route and of all below it."""
    while path:
        if path in _SCOPES:
            return _SCOPES[path]
        path = path.rpartition("/")[0]
    return Scope.ADMIN
