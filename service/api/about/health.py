"""Liveness, readiness, version, metadata and metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from fastapi import Query, Request, Response

from auth.base import Scope
from engines.release import release
from service.api.about.nim import license_of
from service.api.about.schema import (
    EngineKilled,
    Health,
    Load,
    Metadata,
    ModelInfo,
    ProfileInfo,
    SamplingDefaults,
    Version,
    VllmVersion,
)
from service.api.common.operations import json_router, plain_text
from service.errors import RequestError
from service.http import compressed
from service.http.paths import PathRow, RouteGroup, Routes
from service.runtime import CurrentRuntime
from service.telemetry.metrics import CONTENT_TYPE


@dataclass(frozen=True, slots=True)
class EngineNote:
    """In a Runtime: what a part adds to the answer of readiness."""

    read: Callable[[], Awaitable[Literal["asleep"] | None]]


RELEASE = release()
API_VERSION = "1"
SampleNames = Annotated[
    Sequence[str],
    Query(
        alias="name[]",
        description="Return only samples with these names, as Prometheus' clients do.",
    ),
]

router = json_router("Service")


@router.get("/v1/health/live")
async def check_live() -> Health:
    """This process answers; says nothing of the engine."""
    return Health(message="Service is live.")


@router.get("/v1/health/ready")
async def check_ready(runtime: CurrentRuntime) -> Health:
    """A request would be served now; 503 with the reason otherwise."""
    await runtime.lifecycle.check_ready(runtime.engine)
    note = runtime.of(EngineNote)
    return Health(message="Service is ready.", engine=await note.read() if note else None)


@router.get("/health")
async def check_ready_as_vllm(runtime: CurrentRuntime) -> Health:
    """Alias of `/v1/health/ready` at vLLM's path."""
    return await check_ready(runtime)


@router.get("/ping")
async def ping(runtime: CurrentRuntime) -> Health:
    """The same where SageMaker asks for it."""
    return await check_ready(runtime)


@router.post("/ping")
async def ping_by_post(runtime: CurrentRuntime) -> Health:
    """The same by POST, as vLLM takes it."""
    return await check_ready(runtime)


@router.get("/load")
async def get_load(runtime: CurrentRuntime) -> Load:
    """How many requests the engine runs or has waiting, in vLLM's shape."""
    stats = await runtime.engine.stats()
    return Load(server_load=stats.num_running + stats.num_waiting)


@router.get("/version")
async def get_version_as_vllm() -> VllmVersion:
    """The release of this software, where vLLM has its own."""
    return VllmVersion(version=RELEASE)


@router.get("/v1/version")
async def get_version() -> Version:
    """The release of this software and the version of its API."""
    return Version(release=RELEASE, api=API_VERSION)


@router.get("/v1/metadata")
async def get_metadata(
    runtime: CurrentRuntime,
    license_text: Annotated[
        bool,
        Query(
            description="`false` leaves `licenseInfo.content` out, which is most of the response."
        ),
    ] = True,
) -> Metadata:
    """What is served: release, model and licence, and the profile with why it was chosen."""
    model = runtime.model
    license = license_of(model.license) if model.license else None
    if license and not license_text:
        license = license.model_copy(update={"content": None})
    return Metadata(
        version=RELEASE,
        modelInfo=[ModelInfo(shortName=model.id, modelUrl=model.root)],
        selectedModelProfileId=model.profile_id,
        assetInfo=list(model.assets),
        repository_override=model.repository_override,
        licenseInfo=license,
        description=model.description,
        profile=ProfileInfo.model_validate(model.profile) if model.profile else None,
        tools=sorted(runtime.toolbox.tools) if runtime.toolbox else [],
        defaults=SamplingDefaults(temperature=model.temperature),
        may_kill_engine=runtime.kill_engine is not None,
        compare_origins=list(runtime.compared_origins),
    )


@router.post("/v1/engine/kill", status_code=202)
async def kill_engine(runtime: CurrentRuntime) -> EngineKilled:
    """Kill the engine's process, to see that answers continue: where `NIM_ALLOW_ENGINE_KILL`
    allows it, for keys with the scope `admin`, and where only this machine reaches the server."""
    if runtime.kill_engine is None:
        raise RequestError(
            "Killing the engine is disabled; the operator enables it with NIM_ALLOW_ENGINE_KILL=1.",
            status=404,
            code="not_found",
        )
    return EngineKilled(killed=runtime.kill_engine())


@router.get("/v1/metrics", response_class=Response, responses=plain_text("Prometheus text."))
async def get_metrics(
    request: Request, runtime: CurrentRuntime, only: SampleNames = ()
) -> Response:
    """Prometheus text in NIM's names and ours; a dead engine's series are left out."""
    page = await runtime.metrics.render(runtime.engine, "nim", frozenset(only))
    return await compressed.text(request, page, CONTENT_TYPE)


@router.get("/metrics", response_class=Response, responses=plain_text("Prometheus text."))
async def get_metrics_as_vllm(
    request: Request, runtime: CurrentRuntime, only: SampleNames = ()
) -> Response:
    """The same in vLLM's names, for routers, autoscalers and dashboards made for them."""
    page = await runtime.metrics.render(runtime.engine, "vllm", frozenset(only))
    return await compressed.text(request, page, CONTENT_TYPE)


# Probes and load balancers have no key.
_PROBES: Final = (
    "/v1/health/live",
    "/v1/health/ready",
    "/health",
    "/ping",
    "/v1/version",
    "/version",
)
ROUTES: Final = Routes(
    rows=(
        *(PathRow(path, None, is_quiet=True, is_probe=True) for path in _PROBES),
        PathRow("/load", Scope.METRICS, is_quiet=True),
        PathRow("/v1/metrics", Scope.METRICS, is_quiet=True, read="metrics"),
        PathRow("/metrics", Scope.METRICS, is_quiet=True, read="metrics"),
        PathRow("/v1/metadata", Scope.MODELS),
        PathRow("/v1/engine/kill", Scope.ADMIN),
    ),
    router=router,
    rank=60,
    groups=(RouteGroup("Service", "Health, version, metadata and metrics.", 60),),
)
