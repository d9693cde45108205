"""Whether a worker of Dynamo can hand K/V over, or take them, and where each replica does."""

from __future__ import annotations

from dataclasses import replace

from engines.spec import EngineSpec, KvHandover
from profiles.catalogue.models import Profile
from profiles.errors import InvalidConstraint
from service.run.ports import MOST_PORT, of_replica, split
from service.settings.settings import Settings


def check_no_role(settings: Settings) -> None:
    """Raise InvalidConstraint where a server of its own is given a worker's role."""
    if settings.dynamo_role is not None:
        raise InvalidConstraint(
            f"NIM_DYNAMO_ROLE is {settings.dynamo_role}: it is for `harmonium dynamo-worker`;"
            " unset it"
        )


def check_handover(settings: Settings, profile: Profile, num_replicas: int) -> None:
    """Raise InvalidConstraint if the engine has none, or its replicas not enough ports."""
    if settings.dynamo_role is None:
        return
    if profile.engine != "native":
        raise InvalidConstraint(
            f"NIM_DYNAMO_ROLE is {settings.dynamo_role}, and {profile.title} uses engine"
            f" {profile.engine}: only the native engine hands K/V over; choose a profile of it, or"
            " unset it"
        )
    port = split(settings.kv_handover_endpoint)[1]
    if port + num_replicas - 1 > MOST_PORT:
        raise InvalidConstraint(
            f"NIM_KV_HANDOVER_ENDPOINT: {num_replicas} replicas need as many ports from {port} on;"
            " use a lower port"
        )


def with_handover(spec: EngineSpec, settings: Settings, number: int) -> EngineSpec:
    """Give a replica's spec its role, and a prefill engine's the port of its own."""
    role, secret = settings.dynamo_role, settings.kv_handover_secret
    if role is None or secret is None:
        return spec
    endpoint = of_replica(settings.kv_handover_endpoint, number) if role == "prefill" else None
    rest = settings.kv_handover_timeout_s, settings.kv_handover_transport
    return replace(spec, handover=KvHandover(role, secret.get_secret_value(), endpoint, *rest))
