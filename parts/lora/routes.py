"""Loading and unloading adapters while the server runs, at vLLM's paths."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Final

from fastapi.responses import PlainTextResponse
from pydantic import Field

from auth import audit
from auth.base import Scope
from engines.base import Adapter, EngineRequest, SamplingParams
from engines.errors import InvalidRequest
from parts.lora.download import NotFetched, fetched
from parts.lora.files import AdapterError, NoAdapter
from parts.lora.serving import ServedAdapters
from service.api.common.operations import json_router
from service.api.common.schema import RequestModel
from service.errors import INVALID_REQUEST, RequestError
from service.http.paths import PathRow, Routes
from service.request import RequestContext
from service.runtime import CurrentContext, CurrentRuntime, Runtime

router = json_router("Service")

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$")]


class LoadAdapterRequest(RequestModel):
    """Which adapter to load."""

    lora_name: Name
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    load_inplace: bool = False
    is_3d_lora_weight: bool | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None  # of weights to fetch


class UnloadAdapterRequest(RequestModel):
    """Which adapter to unload."""

    lora_name: Name
    lora_int_id: int | None = None


@router.post("/v1/load_lora_adapter", response_class=PlainTextResponse)
async def load_adapter(
    body: LoadAdapterRequest, runtime: CurrentRuntime, context: CurrentContext
) -> PlainTextResponse:
    """Serve one more adapter; returns when the engine has loaded it."""
    served = _served(runtime)
    folder = served.folder
    if folder.get(body.lora_name) is not None and not body.load_inplace:
        raise RequestError(
            f"The adapter {body.lora_name!r} is loaded; unload it first, or send load_inplace: "
            "true.",
            param="lora_name",
            code="adapter_exists",
            status=409,
        )
    try:
        place = await _place(body, served)
        adapter = await asyncio.to_thread(folder.read, body.lora_name, place)
        await _try(adapter, runtime)
    except NoAdapter as error:
        raise _refused(error, "adapter_not_found", 404) from None
    except NotFetched as error:
        raise _refused(error, "adapter_not_fetched", 502, "server_error") from None
    except (AdapterError, InvalidRequest) as error:
        raise _refused(error, "invalid_adapter", 400) from None
    await asyncio.to_thread(folder.put, adapter)
    _write("adapter.loaded", adapter, context)
    return PlainTextResponse(f"Success: LoRA adapter '{adapter.name}' added successfully.")


@router.post("/v1/unload_lora_adapter", response_class=PlainTextResponse)
async def unload_adapter(
    body: UnloadAdapterRequest, runtime: CurrentRuntime, context: CurrentContext
) -> PlainTextResponse:
    """Take no more requests to an adapter; those that run are answered."""
    folder = _served(runtime).folder
    if (adapter := folder.get(body.lora_name)) is None:
        raise RequestError(
            f"The adapter {body.lora_name!r} is not loaded; GET /v1/models lists those that are.",
            param="lora_name",
            code="adapter_not_found",
            status=404,
        )
    await asyncio.to_thread(folder.remove, adapter.name)
    _write("adapter.unloaded", adapter, context)
    return PlainTextResponse(f"Success: LoRA adapter '{adapter.name}' removed successfully.")


def _served(runtime: Runtime) -> ServedAdapters:
    runtime.lifecycle.check_accepting()
    if (found := runtime.of(ServedAdapters)) is None:
        raise RequestError(
            "This server has no adapters; the operator sets NIM_PEFT_SOURCE.",
            status=404,
            code="route_not_found",
        )
    return found


async def _place(body: LoadAdapterRequest, served: ServedAdapters) -> Path:
    """The folder that has the adapter; raises AdapterError."""
    if "://" not in body.lora_path:
        return await asyncio.to_thread(served.folder.below, body.lora_path)
    async with served.fetching:  # one at a time: each has a thread for as long as it takes
        return await asyncio.to_thread(fetched, body.lora_path, body.sha256, served.cache)


async def _try(adapter: Adapter, runtime: Runtime) -> None:
    """Have an engine load it, with a token of a request; raises EngineError."""
    request = EngineRequest(
        f"load-{runtime.new_id()}", (0,), SamplingParams(max_tokens=1), adapter=adapter,
        cache_salt=adapter.key,
    )  # fmt: skip
    async with aclosing(runtime.engine.generate(request)) as events:
        async for _ in events:
            pass


def _refused(error: Exception, code: str, status: int, type: str = INVALID_REQUEST) -> RequestError:
    return RequestError(f"{error}.", param="lora_path", code=code, status=status, type=type)


def _write(event: str, adapter: Adapter, context: RequestContext) -> None:
    caller = context.principal.id if context.principal else ""
    audit.write(event, caller=caller, adapter=adapter.name)


ROUTES: Final = (
    Routes(
        rows=tuple(
            PathRow(path, Scope.ADMIN)
            for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
        ),
        router=router,
        rank=66,
    ),
)
