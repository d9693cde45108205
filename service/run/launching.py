"""What a part may decide at a start, in the parent's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engines.parts import facets
from engines.spec import EngineSpec
from profiles.catalogue.catalogue import Catalogue
from profiles.catalogue.models import Profile
from profiles.hardware.machine import Hardware
from profiles.selection.placement import Placement
from profiles.selection.verdicts import Selection
from service.settings.settings import Settings
from service.telemetry.hooks import Telemetry


class LaunchPart:
    """LAUNCH of parts/<name>/launch.py; by default it decides nothing."""

    def check_server(self, settings: Settings) -> None:
        """Raise InvalidConstraint if `harmonium serve` cannot do what the settings ask for."""

    def elsewhere(
        self, settings: Settings, known: Catalogue
    ) -> tuple[Selection, EngineSpec] | None:
        """What to serve where other machines compute; None: a profile of this one is chosen.

        Raises InvalidConstraint.
        """
        return None

    def check(self, settings: Settings, profile: Profile, num_replicas: int) -> None:
        """Raise InvalidConstraint if the chosen profile cannot do what the settings ask for."""

    def with_options(
        self, spec: EngineSpec, placement: Placement, hardware: Hardware, settings: Settings
    ) -> EngineSpec:
        """Give the engine's spec what this machine has for the part."""
        return spec

    def of_replica(self, settings: Settings, number: int) -> Mapping[str, Any] | None:
        """What the part's engine.py is given in this replica, in plain JSON; None: it is off."""
        return None

    def around(self, spec: EngineSpec, settings: Settings) -> EngineSpec:
        """What is started in place of a replica's engine, which it starts itself."""
        return spec

    def watch(self, settings: Settings, model: str) -> Telemetry | None:
        """What sees this process, which answers no request, until the end."""
        return None

    def has_page(self, settings: Settings) -> bool:
        """Whether the server's address shows a page in a browser."""
        return False

    def hint(self, settings: Settings, url: str) -> str | None:
        """A sentence for who has just started the server, on a terminal."""
        return None


def launch_parts() -> list[LaunchPart]:
    """Every part that decides something at a start."""
    return [*facets("launch", LaunchPart).values()]


def check_server(settings: Settings) -> None:
    """Raise InvalidConstraint if a part cannot do in a server what the settings ask for."""
    for part in launch_parts():
        part.check_server(settings)


def replica_spec(spec: EngineSpec, settings: Settings, number: int) -> EngineSpec:
    """The spec of one replica, with what it gives to the parts in its engine."""
    given = {
        name: own
        for name, part in facets("launch", LaunchPart).items()
        if (own := part.of_replica(settings, number)) is not None
    }
    spec = replace(spec, parts={**spec.parts, **given}) if given else spec
    for part in launch_parts():
        spec = part.around(spec, settings)
    return spec


def watching(settings: Settings, model: str) -> list[Telemetry]:
    """What the parts have to see this process."""
    watchers = (part.watch(settings, model) for part in launch_parts())
    return [watcher for watcher in watchers if watcher is not None]


def hints(settings: Settings, url: str) -> list[str]:
    """What the parts tell who has just started the server."""
    return [hint for part in launch_parts() if (hint := part.hint(settings, url)) is not None]


def has_page(settings: Settings) -> bool:
    """Whether a part shows a page at the server's address."""
    return any(part.has_page(settings) for part in launch_parts())
