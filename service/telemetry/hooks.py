"""The hooks for telemetry, with nothing that takes long to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Scope

    from engines.base import Engine
    from service.answer.generation import Generation
    from service.request import RequestContext, Trace


class Telemetry:
    """The hooks for telemetry, doing nothing; parts/otel/export.py implements them."""

    def start(self, engine: Engine) -> None:
        """Serving begins, in the running loop; the engine may be asked for its counts."""

    def begin(self, context: RequestContext, scope: Scope) -> Trace:
        """A request has come in; return the trace that it continues under."""
        return context.trace

    def observe(self, generation: Generation) -> None:
        """Count a generation that has ended, for any reason."""

    def end(self, context: RequestContext, status: int) -> None:
        """A request was answered; status 0 is a client that left before its answer began."""

    async def close(self) -> None:
        """Send what is left, for a short while; may be called twice."""
