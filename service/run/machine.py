"""This machine, as far as this process may use it."""

from __future__ import annotations

from profiles import hardware
from profiles.machine import Hardware
from profiles.visible import visible
from service.settings.settings import visible_gpus


def visible_hardware() -> Hardware:
    """Describe this machine: its processors and memory, and the GPUs CUDA shows to this process."""
    return visible(hardware.detect(), visible_gpus())
