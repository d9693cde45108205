"""The native engine counts its seconds where usage is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engines.spec import EngineSpec
from parts.usage.counting.engine_time import PART
from parts.usage.settings import UsageSettings
from profiles.hardware.machine import Hardware
from profiles.selection.placement import Placement
from service.run.launching import LaunchPart
from service.settings.settings import Settings


class _Usage(LaunchPart):
    def with_options(
        self, spec: EngineSpec, placement: Placement, hardware: Hardware, settings: Settings
    ) -> EngineSpec:
        if spec.engine != "native" or not settings.of(UsageSettings).usage:
            return spec
        own = {"num_gpus": max(spec.num_devices, 1)}
        return replace(spec, parts={**spec.parts, PART: own})


LAUNCH: Final = _Usage()
