"""Whether an engine can publish KV events, and where each replica does."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engines.spec import EngineSpec, KvEvents
from profiles.catalogue.models import Profile
from profiles.errors import InvalidConstraint
from service.settings.settings import Settings

MOST_PORT: Final = 65535


def check_kv_events(settings: Settings, profile: Profile, num_replicas: int) -> None:
    """Raise InvalidConstraint if the engine has none, or its replicas not enough ports."""
    if not settings.enable_kv_cache_events:
        return
    if profile.engine != "native":
        raise InvalidConstraint(
            f"NIM_ENABLE_KV_CACHE_EVENTS is set, and {profile.title} uses engine"
            f" {profile.engine}: only the native engine publishes KV events here; choose a profile"
            " of it, or unset it"
        )
    ports = [split(settings.kv_events_endpoint)[1]]
    if settings.kv_events_replay_endpoint is not None:
        ports.append(split(settings.kv_events_replay_endpoint)[1])
    if max(ports) + num_replicas - 1 > MOST_PORT:
        raise InvalidConstraint(
            f"NIM_KV_EVENTS_ENDPOINT: {num_replicas} replicas need as many ports from {max(ports)}"
            " on; use a lower port"
        )
    if len(ports) == 2 and abs(ports[0] - ports[1]) < num_replicas:
        raise InvalidConstraint(
            "NIM_KV_EVENTS_ENDPOINT and NIM_KV_EVENTS_REPLAY_ENDPOINT: each replica uses the next"
            f" port; the two must be {num_replicas} or more apart"
        )


def with_kv_events(spec: EngineSpec, settings: Settings, number: int) -> EngineSpec:
    """Give a replica's spec the ports of its own: vLLM counts ranks of data parallelism so."""
    if not settings.enable_kv_cache_events:
        return spec
    replay = settings.kv_events_replay_endpoint
    events = KvEvents(
        endpoint=of_replica(settings.kv_events_endpoint, number),
        replay_endpoint=None if replay is None else of_replica(replay, number),
        topic=settings.kv_events_topic,
        rank=number,
    )
    return replace(spec, kv_events=events)


def of_replica(endpoint: str, number: int) -> str:
    address, port = split(endpoint)
    return f"{address}:{port + number}"


def split(endpoint: str) -> tuple[str, int]:
    address, _, port = endpoint.rpartition(":")
    return address, int(port)
