"""What an API worker knows of an engine that may sleep."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from parts.sleep.settings import SleepSettings
from service.run.wiring import ServingPart
from service.settings.settings import Settings

if TYPE_CHECKING:
    from engines.base import Engine
    from service.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Sleeping:
    """In a Runtime: its engines may sleep."""

    engines: tuple[Engine, ...]

    async def are_asleep(self, engine: Engine) -> bool:
        """Whether all of them sleep; does not wake them. Raises EngineDead."""
        return (await engine.stats()).levels.get("asleep", 0) == len(self.engines)


class _Sleep(ServingPart):
    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        if not settings.of(SleepSettings).sleep_idle_s:
            return runtime
        from engines.recovery.guarded import GuardedEngine
        from service.api.about.health import EngineNote

        guarded = runtime.engine
        sleeping = Sleeping(guarded.engines if isinstance(guarded, GuardedEngine) else ())

        async def state() -> Literal["asleep"] | None:
            return "asleep" if await sleeping.are_asleep(guarded) else None

        return replace(runtime, parts=(*runtime.parts, sleeping, EngineNote(state)))


SERVING: Final = _Sleep()
