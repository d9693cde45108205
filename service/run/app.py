"""The HTTP application: routers, middleware and handlers around a runtime; no logic."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI

from service.api.about import health, models, tokens
from service.api.chat import routes as chat
from service.api.common.schema import ErrorEnvelope
from service.api.completions import routes as completions
from service.api.messages import routes as messages
from service.api.responses import routes as openai_responses
from service.http.answers import add_error_handlers
from service.http.authentication import Authentication
from service.http.middleware import RequestMiddleware
from service.http.origins import Cors, NoForeignPages
from service.pages import routes as pages
from service.runtime import Runtime

# What a page may read of an answer beside its body.
_EXPOSED: Final = (
    "X-Request-Id",
    "Request-Id",
    "Retry-After",
    "WWW-Authenticate",
    *(
        f"x-ratelimit-{name}-{kind}"
        for name in ("limit", "remaining", "reset")
        for kind in ("requests", "tokens")
    ),
)


def create_app(runtime: Runtime) -> FastAPI:
    """The application that serves this runtime; starting and stopping it are the caller's."""
    app = FastAPI(
        title="Harmonium",
        summary="OpenAI-compatible inference for gpt-oss.",
        version=health.RELEASE,
        redoc_url=None,
        responses={"4XX": {"model": ErrorEnvelope}, "5XX": {"model": ErrorEnvelope}},
    )
    app.state.runtime = runtime
    for routes in (
        chat,
        openai_responses,
        completions,
        messages,
        tokens,
        models,
        health,
        pages,
    ):
        app.include_router(routes.router)
    add_error_handlers(app)
    authentication = None
    if runtime.authenticator is not None:
        authentication = Authentication(runtime.authenticator, runtime.metrics.count_auth_failure)
    own = NoForeignPages(runtime.cors_origins) if runtime.is_local else None
    app.add_middleware(RequestMiddleware, runtime=runtime, authentication=authentication, pages=own)
    if runtime.cors_origins:
        # The last added is the outermost: a preflight has no key, and errors are answers too.
        app.add_middleware(
            Cors,
            allow_origins=runtime.cors_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=_EXPOSED,
        )
    return app
