"""The engine of a server that sleeps: a small process starts it, and ends it when it is idle."""

from __future__ import annotations

from typing import Final

import msgspec

from engines.spec import EngineSpec
from parts.sleep.settings import SleepSettings
from service.run.launching import LaunchPart
from service.settings.settings import Settings

PROXY: Final = "parts.sleep.proxy"


class _Sleep(LaunchPart):
    def around(self, spec: EngineSpec, settings: Settings) -> EngineSpec:
        idle_s = settings.of(SleepSettings).sleep_idle_s
        if not idle_s:
            return spec
        given = {
            "spec": msgspec.to_builtins(spec),
            "idle_s": idle_s,
            "step_timeout_s": settings.engine_step_timeout_s,
        }
        return EngineSpec(PROXY, parts={"sleep": given})


LAUNCH: Final = _Sleep()
