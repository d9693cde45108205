"""What handlers ask for."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from service.http.answers import CONTEXT
from service.request.context import RequestContext
from service.runtime import Runtime


# async, so that they run here: FastAPI sends plain functions to a thread.
async def _runtime(request: Request) -> Runtime:
    runtime: Runtime = request.app.state.runtime
    return runtime


async def _context(request: Request) -> RequestContext:
    context: RequestContext = request.scope[CONTEXT]
    return context


CurrentRuntime = Annotated[Runtime, Depends(_runtime)]
CurrentContext = Annotated[RequestContext, Depends(_context)]
