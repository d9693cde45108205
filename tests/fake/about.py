"""The scripted engine of the tests."""

from __future__ import annotations

from typing import Any, Final

from engines.about import About
from engines.queueing.admission import QueuedEngine
from engines.spec import EngineSpec, check_understood


def _create(spec: EngineSpec) -> QueuedEngine[Any]:
    from tests.fake.engine import FakeEngine

    check_understood(spec, ("limits",))
    return FakeEngine.from_json({**spec.limits, **spec.options})


ABOUT: Final = About(_create, needs_vocabulary=False)
