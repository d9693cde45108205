"""NVIDIA Dynamo."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "NVIDIA Dynamo",
    "Serves as the front or a worker of a Dynamo deployment; prefill workers hand K/V to others.",
    "docs/scale.md",
)
