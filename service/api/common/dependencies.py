"""What handlers ask for."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from service.request import caller
from service.runtime import Runtime


# async, so that they run here: FastAPI sends plain functions to a thread.
async def _runtime(request: Request) -> Runtime:
    runtime: Runtime = request.app.state.runtime
    return runtime


async def _request_id(request: Request) -> str:
    request_id: str = request.scope["state"]["request_id"]
    return request_id


async def _owner() -> str:
    principal = caller.current()
    return principal.tenant_id or principal.id if principal else ""


CurrentRuntime = Annotated[Runtime, Depends(_runtime)]
RequestId = Annotated[str, Depends(_request_id)]
# To whom what is stored belongs: the tenant, so that a key may be rotated, else the principal
# alone; empty when the API is open.
Owner = Annotated[str, Depends(_owner)]
