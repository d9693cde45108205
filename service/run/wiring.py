"""From settings to what serves requests: the one place where settings choose what is used.

Importing this costs little: the parent process, which answers nothing, imports it too. What takes
long to import is imported where it is chosen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from auth.authenticators import ApiKeys, Chain, ClientCertificate
from auth.base import Authenticator, PrincipalLimits
from auth.key_folder import KeyFolder
from auth.key_store import KeyStore
from engines.parts import facets
from engines.release import release
from profiles.download.source import FileToFetch, source_of
from service.http.tls import expires_at, tls_of
from service.run.database import database_of, shared_of
from service.settings.settings import Settings

if TYPE_CHECKING:
    from engines.fleet import Fleet
    from engines.process.client import EngineClient
    from service.admission.gate import Gate
    from service.admission.shared_counts import SharedCounts
    from service.run.startup import Launch
    from service.runtime import Runtime, ServedModel

log = logging.getLogger(__name__)


class EngineHistory(Protocol):
    """What knows how often the engine was started again: a supervisor, or a worker."""

    @property
    def num_restarts(self) -> int:
        """How often the engine was started again."""

    @property
    def download(self) -> tuple[int, int]:
        """How many bytes of the model are here, of how many; 0 of 0 while none are fetched."""

    @property
    def is_starting(self) -> bool:
        """Whether an engine has yet to become ready for the first time."""

    @property
    def start_s(self) -> float:
        """Seconds that the start took, or has taken so far."""

    def kill(self) -> int:
        """Kill the engine processes that run; gives how many."""


def build_runtime(
    settings: Settings,
    launch: Launch,
    supervisor: EngineHistory,
    fleet: Fleet[EngineClient],
    shared_folder: Path | None = None,
    counts: SharedCounts | None = None,
) -> Runtime:
    """The runtime of these settings; reads the vocabulary, so that no request waits for it.

    `shared_folder`: where several workers count together, `counts`: what their callers use; None
    when this is the only process.
    """
    from engines.recovery.crash_records import CrashRecords
    from engines.recovery.guarded import GuardedEngine
    from profiles.hardware.usage import GpuMeter
    from service.admission.lifecycle import Lifecycle
    from service.jobs.worker import jobs_on
    from service.runtime import Runtime, ServerLimits
    from service.telemetry.collectors import EngineState, ExpiryCollector
    from service.telemetry.metrics import Metrics

    launch.format.encode_text("")  # reads the vocabulary (0.3 s), which no request shall wait for
    database = database_of(settings)
    metrics = Metrics(
        launch.served_name,
        lambda: EngineState(
            supervisor.num_restarts,
            *supervisor.download,
            tuple(replica.is_ready for replica in fleet.replicas),
            tuple(replica.number in fleet.slow for replica in fleet.replicas),
            supervisor.is_starting,
            supervisor.start_s,
        ),
        shared_folder,
        settings.named_tenants,
        GpuMeter().read if launch.hardware.gpus else None,
        about_of(launch),
    )
    is_local = settings.auth == "auto" and not settings.has_auth
    keys = keys_of(settings)
    expires_of_tls = partial(expires_at, settings.ssl_certs_path)
    metrics.add(ExpiryCollector(keys.expiries if keys else dict, expires_of_tls))
    may_kill = is_local if settings.allow_engine_kill is None else settings.allow_engine_kill
    runtime = Runtime(
        engine=GuardedEngine(
            fleet,
            CrashRecords(fleet.replicas[0].engine.folder / "suspects"),
        ),
        model=served_model(launch, settings.repository_override),
        format=launch.format,
        metrics=metrics,
        lifecycle=Lifecycle(),
        limits=ServerLimits(
            max_body_bytes=settings.max_body_bytes,
            max_connections=settings.max_connections,
            max_connections_per_address=settings.max_connections_per_address,
        ),
        gate=gate_of(settings, counts),
        authenticator=authenticator_of(settings, keys),
        is_local=is_local,
        read_without_key=settings.open_reads,
        cors_origins=settings.cors_origins,
        tls=tls_of(settings),
        kill_engine=supervisor.kill if may_kill else None,
        database=database,
        jobs=jobs_on(database),
        shared_folder=shared_folder,
    )
    for part in facets("serving", ServingPart).values():
        runtime = part.wire(runtime, settings)
    return runtime


def about_of(launch: Launch) -> dict[str, str]:
    """The labels of `harmonium_info`: release, profile, engine and GPU."""
    profile = launch.selection.chosen.profile
    return {
        "version": release(),
        "profile": profile.name,
        "engine": profile.engine,
        "gpu": profile.gpu_label,
    }


def served_model(launch: Launch, repository_override: str | None = None) -> ServedModel:
    """The description of the model and its profile for clients."""
    from service.runtime import ServedModel, ServedProfile

    chosen = launch.selection.chosen
    profile = chosen.profile
    return ServedModel(
        id=launch.served_name,
        more_names=launch.more_names,
        aliases=launch.aliases,
        root=profile.model.name,
        profile_id=profile.id,
        created=int(time.time()),
        description=profile.model.description,
        license=profile.model.license,
        temperature=profile.model.temperature,
        format=profile.model.format,
        profile=ServedProfile(
            name=profile.name,
            engine=profile.engine,
            precision=profile.precision,
            goal=profile.goal,
            hardware=profile.gpu_label,
            num_devices=profile.num_devices,
            replicas=chosen.placement.num_replicas,
            max_model_len=chosen.max_model_len,
            status=profile.status,
            source=profile.source,
            reason=launch.selection.reason,
            notes=launch.selection.notes,
        ),
        assets=assets_of(launch),
        repository_override=repository_override or "",
    )


def assets_of(launch: Launch) -> tuple[str, ...]:
    """Every file of the checkpoint that was published: its place, its name and its SHA-256."""
    own, artifacts = launch.own, launch.selection.chosen.profile.artifacts
    files: Iterable[FileToFetch] = ()
    place = ""
    if own is not None:
        place, files = own.place, own.files
    elif artifacts is not None:
        place, files = str(source_of(artifacts)), artifacts.files
    return tuple(f"{place} {file.name} sha256:{file.sha256 or 'unknown'}" for file in files)


def keys_of(settings: Settings) -> KeyStore | None:
    """The keys that lie in files, None when no path is set; raises AccessError."""
    if settings.api_keys_path is None:
        return None
    keys = KeyStore(settings.api_keys_path)
    keys.load()
    return keys


def authenticator_of(settings: Settings, keys: KeyStore | None = None) -> Authenticator | None:
    """The authenticator of all configured ways in, None when there are none; raises AccessError.

    `keys`: those of the settings, if they were read before.
    """
    keys = keys or keys_of(settings)
    ways: list[Authenticator] = [keys] if keys else []
    found = (part.authenticator(settings) for part in facets("auth", AuthPart).values())
    ways += [way for way in found if way is not None]
    if settings.ssl_mode == "mtls":
        ways.append(ClientCertificate())
    if settings.api_key_list:
        ways.append(ApiKeys(settings.api_key_list))  # the last: any text may be such a key
    return Chain(ways) if ways else None


def check_access(settings: Settings) -> None:
    """Raise AccessError for keys or certificates that cannot be used, before anything starts."""
    if settings.api_keys_path is not None:
        KeyFolder(settings.api_keys_path).check()
    for part in facets("auth", AuthPart).values():
        part.check(settings)
    tls_of(settings)


def gate_of(settings: Settings, counts: SharedCounts | None = None) -> Gate:
    """The gate with the limits that are set; `counts`: of this server's workers."""
    from service.admission.concurrency import ConcurrencyLimit
    from service.admission.counters import MinuteCounters
    from service.admission.gate import Bounds, Gate, Quotas

    shared = shared_of(settings)
    remote = shared.limits(settings) if shared else None
    quotas = Quotas(
        PrincipalLimits(
            settings.rate_limit_requests,
            settings.rate_limit_tokens,
            settings.rate_limit_concurrent,
        ),
        MinuteCounters(counts, remote),
        ConcurrencyLimit(counts, remote),
        counts,
    )
    bounds = Bounds(
        max_wait_s=settings.max_queue_wait_s,
        timeout_s=settings.request_timeout_s,
        min_priority=settings.min_priority,
    )
    return Gate(bounds, quotas)


class AuthPart:
    """AUTH of parts/<name>/auth.py: a way to recognise callers; by default there is none."""

    def check(self, settings: Settings) -> None:
        """Raise AccessError for settings that cannot be used, before anything starts."""

    def authenticator(self, settings: Settings) -> Authenticator | None:
        """What recognises callers, None where it is not configured; raises AccessError."""
        return None


class ServingPart:
    """SERVING of parts/<name>/serving.py: what a part adds to an API worker; by default nothing."""

    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        """The runtime with what the part has for its requests."""
        return runtime

    def running(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        """What the part does while the worker serves."""
        return nullcontext()
