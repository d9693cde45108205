"""Whether an engine can publish KV events, and where each replica does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from parts.kv_events.settings import KvEventSettings
from profiles.catalogue.models import Profile
from profiles.errors import InvalidConstraint
from service.run.launching import LaunchPart
from service.run.ports import MOST_PORT, of_replica, split
from service.settings.settings import Settings


class _KvEvents(LaunchPart):
    def check(self, settings: Settings, profile: Profile, num_replicas: int) -> None:
        """Raise InvalidConstraint if the engine has none, or its replicas not enough ports."""
        own = settings.of(KvEventSettings)
        if not own.enable_kv_cache_events:
            return
        if profile.engine != "native":
            raise InvalidConstraint(
                f"NIM_ENABLE_KV_CACHE_EVENTS is set, and {profile.title} uses engine"
                f" {profile.engine}: only the native engine publishes KV events here; choose a"
                " profile of it, or unset it"
            )
        ports = [split(own.kv_events_endpoint)[1]]
        if own.kv_events_replay_endpoint is not None:
            ports.append(split(own.kv_events_replay_endpoint)[1])
        if max(ports) + num_replicas - 1 > MOST_PORT:
            raise InvalidConstraint(
                f"NIM_KV_EVENTS_ENDPOINT: {num_replicas} replicas need as many ports from"
                f" {max(ports)} on; use a lower port"
            )
        if len(ports) == 2 and abs(ports[0] - ports[1]) < num_replicas:
            raise InvalidConstraint(
                "NIM_KV_EVENTS_ENDPOINT and NIM_KV_EVENTS_REPLAY_ENDPOINT: each replica uses the"
                f" next port; the two must be {num_replicas} or more apart"
            )

    def of_replica(self, settings: Settings, number: int) -> Mapping[str, Any] | None:
        """The ports of its own: vLLM counts ranks of data parallelism so."""
        own = settings.of(KvEventSettings)
        if not own.enable_kv_cache_events:
            return None
        replay = own.kv_events_replay_endpoint
        return {
            "endpoint": of_replica(own.kv_events_endpoint, number),
            "replay_endpoint": None if replay is None else of_replica(replay, number),
            "topic": own.kv_events_topic,
            "rank": number,
        }


LAUNCH: Final = _KvEvents()
