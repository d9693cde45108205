"""What steps take on this device: measured at a start, and on a GPU kept for later ones."""

from __future__ import annotations

import logging
import time
from typing import Final

from engines import start_steps
from engines.native.backends.base import Backend
from engines.native.calibration import calibrate
from engines.native.config import Device, ModelConfig, NativeConfig
from engines.native.loop.limits import SchedulerLimits
from engines.native.step_costs import StepCosts

_BUDGET_S: Final[dict[Device, float]] = {"cuda": 2.0, "cpu": 0.2}

log = logging.getLogger(__name__)


def measured_costs(
    config: NativeConfig, model: ModelConfig, backend: Backend, limits: SchedulerLimits
) -> StepCosts:
    """Take the costs that an earlier start measured; measure them where there are none."""

    def measure() -> StepCosts:
        start_steps.begin("measuring step times")
        begun_s = time.monotonic()
        costs = calibrate(backend, limits, model.vocab_size, _BUDGET_S[config.device])
        log.info("Measured step times in %.1f s", time.monotonic() - begun_s)
        return costs

    if config.artefact_dir is None:
        return measure()
    import torch

    from engines.native.backends.cuda.artefact.kept import Artefact
    from engines.native.backends.cuda.card import Card

    return Artefact(config, model).step_costs(Card.of(torch.device("cuda")), limits, measure)
