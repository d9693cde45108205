"""What handlers ask for."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from service.runtime import Runtime


# async, so that they run here: FastAPI sends plain functions to a thread.
async def _runtime(request: Request) -> Runtime:
    runtime: Runtime = request.app.state.runtime
    return runtime


async def _request_id(request: Request) -> str:
    request_id: str = request.scope["state"]["request_id"]
    return request_id


async def _caller(request: Request) -> str:
    caller: str = request.scope["state"].get("caller", "")
    return caller


CurrentRuntime = Annotated[Runtime, Depends(_runtime)]
RequestId = Annotated[str, Depends(_request_id)]
# Who asks, as the authenticator names them; empty when the API is open.
Caller = Annotated[str, Depends(_caller)]
