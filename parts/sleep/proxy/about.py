"""The engine of a server that sleeps when it is idle."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from engines.about import About
from engines.queueing.admission import QueuedEngine
from engines.spec import EngineSpec


class Given(msgspec.Struct, frozen=True):
    """What launch.py gives."""

    spec: EngineSpec  # of the engine itself
    idle_s: float
    step_timeout_s: float


def _create(spec: EngineSpec) -> QueuedEngine[Any]:
    from engines.process.supervisor import RestartPolicy
    from parts.sleep.proxy.engine import SleepingEngine
    from parts.sleep.proxy.sleeper import NEVER_S, Sleeper

    given = msgspec.convert(spec.parts["sleep"], Given)
    # An engine that dies ends this process as well, which is started again as any engine is.
    policy = RestartPolicy(first_delay_s=NEVER_S, step_timeout_s=given.step_timeout_s)
    most = {**given.spec.limits, **given.spec.options}.get("max_num_waiting")
    return SleepingEngine(Sleeper(given.spec, policy, given.idle_s), most)


ABOUT: Final = About(_create, needs_vocabulary=False)
