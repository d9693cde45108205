"""How the routes describe themselves in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute

from service.http.body import JSONRoute

Responses = dict[int | str, dict[str, Any]]


def operation_id(route: APIRoute) -> str:
    """The name of the route's function: generators name the method of a client after it."""
    return route.name


def json_router(tag: str) -> APIRouter:
    """The router of a group; bodies are JSON.

    The document has the errors of its routes from their paths' dialect.
    """
    return APIRouter(route_class=JSONRoute, tags=[tag], generate_unique_id_function=operation_id)


def event_stream(events: str) -> Responses:
    """The answer of a route that streams on request; `events` says what each event holds."""
    schema = {"type": "string", "description": f"Server-sent events: {events}"}
    return {200: {"content": {"text/event-stream": {"schema": schema}}}}


def plain_text(what: str) -> Responses:
    return {200: {"content": {"text/plain": {"schema": {"type": "string", "description": what}}}}}
