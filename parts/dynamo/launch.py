"""What a start decides of Dynamo: whether it is a front, and each worker's role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from engines.spec import EngineSpec
from parts.dynamo.front import front_spec, select_front
from parts.dynamo.handover.spec import KvHandover
from parts.dynamo.settings import DynamoSettings
from profiles.catalogue.catalogue import Catalogue
from profiles.catalogue.models import Profile
from profiles.errors import InvalidConstraint
from profiles.selection.verdicts import Selection
from service.run.launching import LaunchPart
from service.run.ports import MOST_PORT, of_replica, split
from service.run.pythons import engines_here
from service.settings.settings import Settings


class _Dynamo(LaunchPart):
    def check_server(self, settings: Settings) -> None:
        """Raise InvalidConstraint where a server of its own is given a worker's role."""
        if (role := settings.of(DynamoSettings).dynamo_role) is not None:
            raise InvalidConstraint(
                f"NIM_DYNAMO_ROLE is {role}: it is for `harmonium dynamo-worker`; unset it"
            )

    def elsewhere(
        self, settings: Settings, known: Catalogue
    ) -> tuple[Selection, EngineSpec] | None:
        if settings.of(DynamoSettings).dynamo_endpoint is None:
            return None
        selection = select_front(settings, known, engines_here(settings).installed)
        return selection, front_spec(settings)

    def check(self, settings: Settings, profile: Profile, num_replicas: int) -> None:
        """Raise InvalidConstraint if the engine hands nothing over, or its replicas have not enough
        ports."""
        own = settings.of(DynamoSettings)
        if own.dynamo_role is None:
            return
        if profile.engine != "native":
            raise InvalidConstraint(
                f"NIM_DYNAMO_ROLE is {own.dynamo_role}, and {profile.title} uses engine"
                f" {profile.engine}: only the native engine hands K/V over; choose a profile of it,"
                " or unset it"
            )
        port = split(own.kv_handover_endpoint)[1]
        if port + num_replicas - 1 > MOST_PORT:
            raise InvalidConstraint(
                f"NIM_KV_HANDOVER_ENDPOINT: {num_replicas} replicas need as many ports from {port}"
                " on; use a lower port"
            )

    def of_replica(self, settings: Settings, number: int) -> Mapping[str, Any] | None:
        """A replica's role, and a prefill engine's port of its own."""
        own = settings.of(DynamoSettings)
        role, secret = own.dynamo_role, own.kv_handover_secret
        if role is None or secret is None:
            return None
        endpoint = of_replica(own.kv_handover_endpoint, number) if role == "prefill" else None
        rest = own.kv_handover_timeout_s, own.kv_handover_transport
        return asdict(KvHandover(role, secret.get_secret_value(), endpoint, *rest))


LAUNCH: Final = _Dynamo()
