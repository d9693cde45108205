"""This machine, as far as this process may use it."""

from __future__ import annotations

from profiles.hardware import detection
from profiles.hardware.machine import Hardware
from profiles.hardware.visible import visible
from service.settings.settings import visible_gpus


def visible_hardware() -> Hardware:
    return visible(detection.detect(), visible_gpus())
