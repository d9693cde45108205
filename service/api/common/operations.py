"""How the routes describe themselves in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from fastapi.routing import APIRoute

Responses = dict[int | str, dict[str, Any]]


def operation_id(route: APIRoute) -> str:
    """The name of the route's function: generators name the method of a client after it."""
    return route.name


def event_stream(events: str) -> Responses:
    """The answer of a route that streams on request; `events` says what each event holds."""
    schema = {"type": "string", "description": f"Server-sent events: {events}"}
    return {200: {"content": {"text/event-stream": {"schema": schema}}}}


def plain_text(what: str) -> Responses:
    return {200: {"content": {"text/plain": {"schema": {"type": "string", "description": what}}}}}
