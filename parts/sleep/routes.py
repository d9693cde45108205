"""Putting the engine to sleep and waking it, at vLLM's paths."""

from __future__ import annotations

from typing import Final

from fastapi import Response

from auth.base import Scope
from engines.base import Engine
from parts.sleep.proxy.engine import order
from parts.sleep.serving import Sleeping
from service.api.common.operations import json_router
from service.api.common.schema import ResponseModel
from service.errors import RequestError
from service.http.paths import PathRow, Routes
from service.runtime import CurrentRuntime, Runtime

router = json_router("Service")

_RETRY_S: Final = "1"


class SleepState(ResponseModel):
    """Whether the engine sleeps."""

    is_sleeping: bool


@router.post("/sleep", response_class=Response)
async def put_to_sleep(runtime: CurrentRuntime) -> Response:
    """End the engine's process now; 409 while requests run."""
    if not all([await _told(engine, runtime, "sleep") for engine in _sleeping(runtime).engines]):
        raise RequestError(
            "The engine has requests; send this again when they have ended.",
            status=409,
            code="engine_busy",
            headers={"Retry-After": _RETRY_S},
        )
    return Response(status_code=200)


@router.post("/wake_up", response_class=Response)
async def wake_up(runtime: CurrentRuntime) -> Response:
    """Start the engine again; returns when it runs."""
    for engine in _sleeping(runtime).engines:
        await _told(engine, runtime, "wake")
    return Response(status_code=200)


@router.get("/is_sleeping")
async def is_sleeping(runtime: CurrentRuntime) -> SleepState:
    """Whether the engine sleeps; does not wake it."""
    return SleepState(is_sleeping=await _sleeping(runtime).are_asleep(runtime.engine))


def _sleeping(runtime: Runtime) -> Sleeping:
    runtime.lifecycle.check_accepting()
    if (found := runtime.of(Sleeping)) is None:
        raise RequestError(
            "The engine of this server does not sleep; the operator sets NIM_SLEEP_IDLE_S.",
            status=404,
            code="route_not_found",
        )
    return found


async def _told(engine: Engine, runtime: Runtime, what: str) -> bool:
    """Give an engine an order; whether it sleeps now."""
    async for event in engine.generate(order(f"{what}-{runtime.new_id()}", what)):
        return bool((event.extras or {}).get("asleep"))
    return False


ROUTES: Final = (
    Routes(
        rows=tuple(PathRow(path, Scope.ADMIN) for path in ("/sleep", "/wake_up", "/is_sleeping")),
        router=router,
        rank=65,
    ),
)
